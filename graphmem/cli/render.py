"""`graphmem render`: pictures, tables and traces of a step, by the file's extension."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from graphmem.advice.commands import advice_command
from graphmem.cli import options
from graphmem.cli.output import progress, write_bytes
from graphmem.cli.request import takes_request
from graphmem.gate.messages import CannotReadError, NotReportError

if TYPE_CHECKING:
    from graphmem.analysis import Analysis, Progress, Request
    from graphmem.report import Report

Output = Annotated[
    Path,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="page: .html; drawing: .svg .png .pdf .dot; PyTorch's memory_viz: .pickle; "
        "Perfetto: .json.gz; table: .csv .parquet",
        callback=options.writable,
    ),
]
Plot = Annotated[
    Literal["liveness", "timeline"],
    typer.Option("--plot", help="Drawing: the liveness graph, or a plain timeline."),
]
Depth = Annotated[
    int | None,
    typer.Option("--depth", min=1, help="Drawing: how many parts of module names to show."),
]
Expand = Annotated[
    list[str] | None,
    typer.Option(
        "--expand",
        metavar="GLOB",
        help="Drawing: show single operations of these modules; repeatable.",
    ),
]
Phase = Annotated[
    Literal["forward", "backward", "optimizer"] | None,
    typer.Option("--phase", help="Drawing: show only this phase."),
]
Around = Annotated[
    str | None,
    typer.Option(
        "--around", metavar="peak|OP|MODULE", help="Drawing: show only what surrounds this."
    ),
]
Compare = Annotated[
    str | None,
    typer.Option(
        "--compare",
        metavar="TARGET",
        help="Page: show another run beside the target's: a saved step, code, or a report (.json).",
    ),
]
Table = Annotated[
    Literal["timeline", "holders"], typer.Option("--table", help="Table: which one to write.")
]


@takes_request("settings gpu torch env assume autocast optimizer grads steps inference freeze")
def render(
    target: options.Target,
    output: Output,
    *,
    request: Request,
    plot: Plot = "liveness",
    depth: Depth = None,
    expand: Expand = None,
    phase: Phase = None,
    around: Around = None,
    compare: Compare = None,
    table: Table = "timeline",
    no_source: options.NoSource = False,
) -> None:
    """Draw a training step's memory, without a GPU.

    Example: graphmem render model.py:build -o step.html
    """
    from graphmem.analysis import run_analysis
    from graphmem.graph import PhaseName
    from graphmem.render.files import PictureOptions, renderer_for
    from graphmem.render.liveness import View

    view = View(depth, tuple(expand or ()), PhaseName(phase) if phase else None, around)
    with progress() as report_progress:
        other = _other(compare, request, report_progress) if compare else None
        choices = PictureOptions(
            plot,
            table,
            view,
            other,
            with_source=not no_source,
            more=advice_command(target, request),
        )
        draw = renderer_for(output.name, choices)
        analysis = run_analysis(target, request, report_progress)
        report_progress("drawing")
        content = draw(analysis)
    write_bytes(output, content)


def _other(target: str, request: Request, tell: Progress) -> Analysis | Report:
    """The run to compare with; a saved step has its own card and options."""
    from graphmem.analysis import Request, run_analysis
    from graphmem.targets import is_record

    if target.endswith(".json"):
        return _report(Path(target))
    return run_analysis(target, Request() if is_record(target) else request, tell)


def _report(path: Path) -> Report:
    """A report that `graphmem analyze --format json` wrote."""
    import msgspec

    from graphmem.report import Report

    try:
        return Report.from_json(path.read_bytes())
    except OSError as error:
        raise CannotReadError(path, error.strerror) from error
    except msgspec.MsgspecError as error:
        raise NotReportError(path, error) from error
