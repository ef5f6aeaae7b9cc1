"""`graphmem check`: the gate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from graphmem.cli import options
from graphmem.cli.messages import PartialUpdateError, TimeoutOnClusterError
from graphmem.cli.output import console, write_text
from graphmem.errors import InputError
from graphmem.plain_text import Console, visible

if TYPE_CHECKING:
    from graphmem.gate.check import Check
    from graphmem.gate.config import Config
    from graphmem.gate.lock import Lock


def _target_names() -> list[str]:
    """The names that a shell offers: those of the configuration, if there is a valid one."""
    from graphmem.gate.config import find_config, load_config

    try:
        return list(load_config(find_config(Path.cwd())).targets)
    except InputError:
        return []


def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]…",
            help="Targets by name; by default all of them.",
            autocompletion=_target_names,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="The configuration.  [default: graphmem.toml, or pyproject.toml with "
            "\\[tool.graphmem], here or above]",
            show_default=False,
        ),
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Make the current figures the baseline.")
    ] = False,
    output_format: Annotated[
        Literal["text", "json", "markdown", "github", "junit", "sarif"],
        typer.Option("--format", help="Output format."),
    ] = "text",
    output: options.Output = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            min=1,
            metavar="N",
            help="How many processes to use.  [default: one per core]",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="REV", help="Only targets affected by changes since REV."),
    ] = None,
    dask: Annotated[
        str | None,
        typer.Option("--dask", metavar="ADDRESS", help="Run on a Dask cluster instead of here."),
    ] = None,
    timeout: options.Timeout = None,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Analyse everything again, cached or not.")
    ] = False,
) -> None:
    """Check every target against its limits and the baseline, graphmem.lock.

    Exits with 0 when all is fine, 1 when a limit is exceeded, 2 when a target or the
    configuration is at fault, 3 when graphmem itself is.

    Example: graphmem check --format github
    """
    from graphmem.environment import environment
    from graphmem.gate.check import How, run_check
    from graphmem.gate.config import find_config, load_config
    from graphmem.gate.lock import FILE
    from graphmem.private_cache import FOLDER

    if dask is not None and timeout is not None:
        raise TimeoutOnClusterError()
    settings = load_config(config or find_config(Path.cwd()))
    lock_path = settings.root / FILE
    lock, is_lost = _baseline(lock_path, update)
    how = How(processes=jobs, dask=dask, since=since, cached=not no_cache, timeout=timeout)
    again = {FOLDER: ""} if no_cache else {}
    with _progress() as report_progress, environment(again):
        outcome = run_check(settings, lock, names or (), how, report_progress)
    if update:
        outcome = outcome.accepted()
        _update(lock_path, lock, outcome, settings, is_lost)
    _tell(outcome, output_format, output)
    raise typer.Exit(outcome.exit_code)


def _baseline(path: Path, update: bool) -> tuple[Lock, bool]:
    """The baseline, and whether a merge conflict spoilt it, which is fine for an update."""
    from graphmem.gate.lock import Lock, LockConflictError, read_lock

    try:
        return read_lock(path), False
    except LockConflictError:
        if not update:
            raise
        return Lock(), True


def _update(path: Path, lock: Lock, outcome: Check, settings: Config, is_lost: bool) -> None:
    """Write the baseline if it changed.

    Raises:
        InputError: the old entries are lost, and some target was not measured.
    """
    measured = {result.name for result in outcome.results if result.verdict}
    if is_lost and measured != set(settings.targets):
        raise PartialUpdateError(path.name)
    text = outcome.lock(lock, settings).to_toml()
    if not path.exists() or path.read_text("utf-8") != text:
        write_text(path, text)


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on stderr; silent unless that is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    stderr = Console(stderr=True)
    with Progress(
        *columns,
        TimeElapsedColumn(),
        console=stderr,
        transient=True,
        disable=not stderr.is_terminal,
    ) as bar:
        task = bar.add_task("analysing")
        yield lambda name, done, total: bar.update(
            task, completed=done, total=total, description=name or "analysing"
        )


def _tell(outcome: Check, output_format: str, output: Path | None) -> None:
    from graphmem.gate.formats import FORMATS
    from graphmem.gate.formats.text import print_check

    if output:
        write_text(output, visible(FORMATS[output_format](outcome)))
    elif output_format == "text":
        print_check(outcome, console())
    else:
        typer.echo(visible(FORMATS[output_format](outcome)), nl=False)
