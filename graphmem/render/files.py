"""Choose the format of a picture by the file's extension."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from graphmem.analysis import Analysis
from graphmem.render import drawing, tables
from graphmem.render.liveness import Liveness, View, liveness
from graphmem.render.messages import DotHasNoTimelineError, UnknownEndingError
from graphmem.render.page import page
from graphmem.render.plot import timeline_plot
from graphmem.render.snapshot import snapshot_bytes
from graphmem.render.trace_events import trace_bytes
from graphmem.report import answer
from graphmem.report.schema import Report
from graphmem.units import format_bytes

Draw = Callable[[Analysis], bytes]


@dataclass(frozen=True)
class PictureOptions:
    """Options that the extension leaves open.

    Attributes:
        plot: what a drawing shows.
        table: which table to write.
        view: the detail of the liveness graph.
        other: the run that a page has beside its own, or a report of one.
        with_source: whether a page contains the user's source files.
        more: the command that measures what would help, for a page.
    """

    plot: Literal["liveness", "timeline"] = "liveness"
    table: tables.TableName = "timeline"
    view: View = field(default_factory=View)
    other: Analysis | Report | None = None
    with_source: bool = True
    more: str = ""


def renderer_for(name: str, choices: PictureOptions) -> Draw:
    """The function that renders a file with this name.

    Raises:
        InputError: no format has this extension, or its program is missing.
    """
    renderers: dict[str, Draw] = {
        ".html": lambda analysis: _page(analysis, choices).encode(),
        ".dot": _source(choices),
        ".pickle": snapshot_bytes,
        ".json.gz": trace_bytes,
        ".csv": lambda analysis: tables.csv_text(_rows(analysis, choices)).encode(),
        ".parquet": lambda analysis: tables.parquet_bytes(_rows(analysis, choices)),
    }
    for ending, draw in renderers.items():
        if name.endswith(ending):
            return draw
    for file_format in drawing.FORMATS:
        if name.endswith(f".{file_format}"):
            return _drawing(file_format, choices)
    known = ", ".join((*renderers, *(f".{each}" for each in drawing.FORMATS)))
    raise UnknownEndingError(name, known)


def _page(analysis: Analysis, choices: PictureOptions) -> str:
    return page(analysis, choices.other, with_source=choices.with_source, more=choices.more)


def _drawing(file_format: str, choices: PictureOptions) -> Draw:
    if choices.plot == "timeline":
        return lambda analysis: timeline_plot(analysis, file_format)
    drawing.require_dot()
    return lambda analysis: drawing.drawn(*_liveness(analysis, choices), file_format)


def _source(choices: PictureOptions) -> Draw:
    def draw(analysis: Analysis) -> bytes:
        if choices.plot == "timeline":
            raise DotHasNoTimelineError()
        return drawing.dot_source(*_liveness(analysis, choices)).encode()

    return draw


def _liveness(analysis: Analysis, choices: PictureOptions) -> tuple[Liveness, list[str]]:
    report = analysis.report
    verdict = answer.verdict_in_words(report)[:1] or [report.runtime.title]
    peak = f"peak {format_bytes(report.peak.allocated)} in the {report.peak.phase} phase"
    return liveness(analysis, choices.view), [report.target, f"{peak}; {verdict[0]}"]


def _rows(analysis: Analysis, choices: PictureOptions) -> tables.Rows:
    return tables.table(analysis, choices.table)
