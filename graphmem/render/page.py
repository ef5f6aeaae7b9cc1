"""The page: a self-contained HTML file that works offline in a browser of 2023 or later."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from graphmem.analysis import Analysis
from graphmem.render.page_data import columns, packed, summary
from graphmem.render.source_files import source_files
from graphmem.report import answer
from graphmem.report.categories import CATEGORY_COLOURS, CATEGORY_NAMES
from graphmem.report.schema import Report
from graphmem.units import format_bytes, format_exact

# Classes first, then the code that uses them.
SCRIPTS = (
    "text.js",
    "colours.js",
    "data.js",
    "stack.js",
    "layers.js",
    "timeline.js",
    "overview.js",
    "gestures.js",
    "details.js",
    "modules.js",
    "keepers.js",
    "holders.js",
    "source.js",
    "comparison.js",
    "main.js",
)


def page(
    analysis: Analysis,
    other: Analysis | Report | None = None,
    *,
    with_source: bool = True,
    more: str = "",
) -> str:
    """Render an analysis as a page, beside another run or its report if one is given.

    The page contains the user's source files, unless `with_source` is off, and if the report has no
    advice, `more`, the command that measures it.
    """
    content = columns(analysis)
    if with_source:
        content["files"] = source_files(analysis.graph)
    if isinstance(other, Analysis):
        content["other"] = columns(other)
    elif other is not None:
        content["other"] = {"report": summary(other)}
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["with_code"] = _with_code
    return environment.from_string(_asset("page.html.j2")).render(
        report=analysis.report,
        compared=other is not None,
        verdict=answer.verdict_in_words(analysis.report),
        leak=answer.LEAK,
        largest_batch=answer.largest_batch_in_words(analysis.report),
        bounds=list(answer.bounds_in_words(analysis.report)),
        more=more,
        then=answer.then,
        style=Markup(_asset("page.css")),
        script=Markup(_script()),
        data=packed(content),
        format_bytes=format_bytes,
        format_exact=format_exact,
    )


def _with_code(line: str) -> Markup:
    """A line of the report in HTML: what stands in backticks is code."""
    return Markup(re.sub("`(.+?)`", r"<code>\1</code>", str(escape(line))))


@cache
def _script() -> str:
    constants = {
        "CATEGORY_NAMES": dict(CATEGORY_NAMES),
        "CATEGORY_COLOURS": dict(CATEGORY_COLOURS),
    }
    lines = [f"const {name} = {json.dumps(value)};" for name, value in constants.items()]
    return "\n".join([*lines, *map(_asset, SCRIPTS)])


@cache
def _asset(name: str) -> str:
    return files("graphmem.render").joinpath("page", name).read_text(encoding="utf-8")
