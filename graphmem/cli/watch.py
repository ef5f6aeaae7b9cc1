"""`graphmem watch`: what each saved change does to the memory of a step."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from graphmem.cli import options
from graphmem.cli.errors import print_error
from graphmem.cli.output import console
from graphmem.cli.request import takes_request
from graphmem.plain_text import visible

if TYPE_CHECKING:
    from graphmem.analysis import Request
    from graphmem.gate.jobs import Outcome
    from graphmem.report import Report

_DIFFERENCES = 8


@takes_request(
    "settings gpu torch env assume strict compile autocast optimizer grads steps inference freeze "
    "checkpoint activation batch"
)
def watch(
    target: options.Code,
    *,
    request: Request,
    timeout: options.Timeout = None,
) -> None:
    """Analyse a step again whenever one of its files is saved, and print what changed.

    Libraries stay imported, so only the first analysis takes as long as `graphmem analyze`. Ctrl-C
    ends it.

    Example: graphmem watch model.py:build --gpu a100-40gb
    """
    from graphmem.analysis import runtime_of
    from graphmem.gate.jobs import Job
    from graphmem.gate.watching import Watcher
    from graphmem.targets import load_target

    # What no save can mend ends the command at once.
    runtime_of(request).new_allocator(bounded=False)
    load_target(target, request.settings)
    # A file that is saved twice within a second may keep its size, and its bytecode would look
    # as if it were up to date.
    sys.dont_write_bytecode = True
    watcher = Watcher(Job(target, Path.cwd(), target, request), timeout)
    before = _tell(target, watcher.analyse(), None)
    while True:
        typer.echo(f"watching {_listed(sorted(watcher.files))}; Ctrl-C ends it", err=True)
        saved = watcher.wait(_tell_missing)
        typer.echo(f"\n{time.strftime('%H:%M:%S')} {_listed(saved)} saved")
        before = _tell(target, watcher.analyse(), before)


def _tell(target: str, outcome: Outcome, before: Report | None) -> Report | None:
    """Print a report, or its difference to the one before; return the latest report."""
    from graphmem.gate.diff import diff_reports
    from graphmem.gate.formats.differences import diffs_as_text
    from graphmem.report.answer import headline
    from graphmem.report.text import print_brief

    failure, report = outcome.failure, outcome.report
    if failure is not None:
        print_error(failure.message, failure.user_traceback, failure.hint)
    if report is None:
        return before
    if before is None:
        print_brief(report, console())
        return report
    if report.on_card is not None:
        console().print(headline(report))
    text = diffs_as_text([diff_reports(target, before, report)], _DIFFERENCES)
    typer.echo(visible(text), nl=False)
    return report


def _tell_missing(files: Sequence[str]) -> None:
    were = "was" if len(files) == 1 else "were"
    typer.echo(f"{_listed(files)} {were} deleted: waiting for the next save", err=True)


def _listed(files: Sequence[str]) -> str:
    first, *others = files
    return visible(first) + (f" and {len(others)} more" if others else "")
