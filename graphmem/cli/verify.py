"""`graphmem verify`: predictions, and the allocator's model, against recorded CUDA runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphmem.cli import options
from graphmem.cli.messages import (
    NoRecordingNamedError,
    OneRecordingOnlyError,
    RecordingHasOptionsError,
    SuiteHasOwnFilesError,
    WhichVerificationError,
)
from graphmem.cli.output import progress, put, write_text
from graphmem.cli.request import takes_request
from graphmem.cores import usable_cores

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from graphmem.analysis import Request
    from graphmem.verify.suite import Suite

_DIFFERS = 1


@takes_request("settings gpu torch env autocast optimizer grads steps inference")
def verify(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RECORDING...",
            help="Snapshots of torch.cuda.memory._dump_snapshot, or compact *.events.json files; "
            "those of tools/record_cuda.py know their target.",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="TARGET",
            help="Compare one recording with the prediction for this target, event by event.",
        ),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--start",
            help="Where in the prediction the recording starts: setup, `step N`, or `step N "
            "forward|backward|optimizer`; steps count from 0.",
        ),
    ] = "setup",
    allocator: Annotated[
        bool,
        typer.Option(
            "--allocator",
            help="Replay the recordings' own sizes and order through the model of the allocator.",
        ),
    ] = False,
    suite: Annotated[bool, typer.Option("--suite", help="Run every case file.")] = False,
    recordings: Annotated[
        Path | None,
        typer.Option(
            "--recordings",
            metavar="DIR",
            help="The recordings of the suite.  [default: GRAPHMEM_RECORDINGS, else "
            "shared/recordings beside the repository]",
            show_default=False,
        ),
    ] = None,
    cases: Annotated[
        Path | None,
        typer.Option(
            "--cases",
            metavar="PATH",
            help="A folder of case files, or one of them.  [default: fixtures/cases]",
        ),
    ] = None,
    environments: Annotated[
        Path | None,
        typer.Option(
            "--environments",
            metavar="DIR",
            help="Where `make test TORCH=X.Y.Z` made environments: a case recorded on such a "
            "release is traced by it.  [default: the repository]",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            min=1,
            metavar="N",
            help="How many processes --suite uses.  [default: one per core]",
        ),
    ] = None,
    *,
    request: Request,
    output_format: options.Format = "text",
    output: options.Output = None,
) -> None:
    """Check predictions against recordings of real CUDA runs, and against what runs printed.

    The exit code is 0 if all is equal, 1 if something differs, 2 if the input is wrong.

    Example: graphmem verify run.pickle --target model.py:build --gpu h100
    """
    from graphmem.analysis import Request

    _check_mode(files or [], target=target, allocator=allocator, suite=suite)
    writer = _Writer(output_format, output)
    if allocator:
        return _verify_allocator(files or [], writer)
    if suite:
        return _verify_suite(cases, recordings, environments, jobs, writer)
    if target is None:
        if (start, request) != ("setup", Request()):
            raise RecordingHasOptionsError()
        return _verify_own(files or [], writer)
    return _verify_target((files or [])[0], target, start, request, writer)


def _check_mode(files: list[Path], *, target: str | None, allocator: bool, suite: bool) -> None:
    """Check that one way to verify was chosen, with the right number of files."""
    chosen = (target is not None) + allocator + suite
    if chosen > 1 or not (chosen or files):
        raise WhichVerificationError()
    if suite and files:
        raise SuiteHasOwnFilesError()
    if allocator and not files:
        raise NoRecordingNamedError()
    if target is not None and len(files) != 1:
        raise OneRecordingOnlyError(len(files))


class _Writer:
    """Writes a result to the terminal or the file of the options."""

    def __init__(self, output_format: str, output: Path | None) -> None:
        self.is_json = output_format == "json"
        self._output = output

    def write_json(self, text: str) -> None:
        """Write a document."""
        put(text, self._output)

    def write_lines(self, lines: Iterable[Text | Table]) -> None:
        """Write lines and tables."""
        from graphmem.verify.text import rendered

        if self._output:
            write_text(self._output, rendered(lines))
        else:
            typer.echo(rendered(lines, colour=sys.stdout.isatty()), nl=False)


def _verify_allocator(files: list[Path], writer: _Writer) -> None:
    from graphmem.verify import check_allocator
    from graphmem.verify.json_form import allocator_json
    from graphmem.verify.text import allocator_table

    checks = check_allocator(files)
    if writer.is_json:
        writer.write_json(allocator_json(checks))
    else:
        writer.write_lines(allocator_table(checks))
    if any(check.has_misses for check in checks):
        raise typer.Exit(_DIFFERS)


def _verify_target(file: Path, target: str, start: str, request: Request, writer: _Writer) -> None:
    from graphmem.torch_releases import parse_release
    from graphmem.verify import compare, predict
    from graphmem.verify.json_form import comparison_json
    from graphmem.verify.recording_files import read_recorded
    from graphmem.verify.text import comparison_text
    from graphmem.verify.window import parse_start

    moment = parse_start(start)
    release = None if request.torch is None else parse_release(request.torch)
    recorded = read_recorded(file, release=release)
    with progress() as report_progress:
        prediction = predict(target, request, recorded.settings, report_progress)
        comparison = compare(recorded, prediction, moment)
    if writer.is_json:
        writer.write_json(comparison_json(comparison))
    else:
        writer.write_lines(comparison_text(comparison))
    if not comparison.is_equal:
        raise typer.Exit(_DIFFERS)


def _verify_own(files: list[Path], writer: _Writer) -> None:
    from graphmem.verify import run_suite
    from graphmem.verify.own_cases import own_case

    _write_suite(lambda progress: run_suite(map(own_case, files), Path(), progress), writer)


def _verify_suite(
    cases: Path | None,
    recordings: Path | None,
    environments: Path | None,
    jobs: int | None,
    writer: _Writer,
) -> None:
    from graphmem.gate.processes import warm_processes
    from graphmem.verify import read_cases, run_suite
    from graphmem.verify.cases import REPOSITORY, default_cases
    from graphmem.verify.environments import find_environments, rows_of_own_release
    from graphmem.verify.recording_files import default_folder

    found = list(read_cases(cases or default_cases()))
    known = find_environments(environments or REPOSITORY)
    rows = partial(rows_of_own_release, environments=known)
    run = partial(run_suite, found, recordings or default_folder(), rows=rows)
    processes = min(jobs or usable_cores(), len(found))
    with warm_processes(processes) if processes > 1 else nullcontext() as executor:
        _write_suite(partial(run, executor=executor), writer)


def _write_suite(run: Callable[[Callable[[str], None]], Suite], writer: _Writer) -> None:
    from graphmem.verify.json_form import suite_json
    from graphmem.verify.text import suite_table

    with progress() as report_progress:
        suite = run(report_progress)
    if writer.is_json:
        writer.write_json(suite_json(suite))
    else:
        writer.write_lines(suite_table(suite))
    if suite.has_failed:
        raise typer.Exit(_DIFFERS)
