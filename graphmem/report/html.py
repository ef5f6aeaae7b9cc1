"""A report as HTML without scripts, for notebooks: the answer, the timeline, the holders."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from graphmem.report import answer
from graphmem.report.categories import CATEGORY_COLOURS, CATEGORY_NAMES
from graphmem.report.holders import groups_of
from graphmem.report.schema import Report
from graphmem.units import format_bytes, format_exact, format_shape

_WIDTH, _HEIGHT = 720, 120
_SHOWN = 8
_RED, _GREEN = "#c0392b", "#1e8449"


def report_as_html(report: Report) -> str:
    """Format a report as one HTML element, in the colours of the surrounding page."""
    sections = (_verdict, _advice, _peak, _timeline, _categories, _holders)
    parts = "".join(part for section in sections for part in section(report))
    return f'<div class="graphmem">{parts}</div>'


def report_as_document(report: Report) -> str:
    """Format a report as a whole page."""
    title = escape(f"{report.target}: {format_bytes(report.peak.allocated)}")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        "<style>:root{color-scheme:light dark}body{font:14px/1.45 system-ui,sans-serif;"
        "max-width:960px;margin:24px auto;padding:0 14px}</style></head>\n"
        f"<body><h1>{escape(report.target)}</h1>{report_as_html(report)}</body></html>\n"
    )


def _verdict(report: Report) -> Iterator[str]:
    lines = answer.verdict_in_words(report)
    card = report.on_card
    if card is None or not lines:
        return
    colour = _GREEN if card.fits else _RED
    yield f'<p><strong style="color:{colour};font-size:1.15em">{escape(lines[0])}</strong>'
    yield "".join(f"<br>{escape(line)}" for line in lines[1:])
    yield "</p>"


def _advice(report: Report) -> Iterator[str]:
    """The largest batch and the biggest savings, if they were measured."""
    batch = answer.largest_batch_in_words(report)
    if batch:
        yield f"<p><strong>{escape(batch)}</strong></p>"
    changes = report.advice.changes if report.advice is not None else []
    if changes:
        yield "<p>biggest savings, each measured</p><ol>"
        for change in changes:
            saves = f"{change.what}: saves {format_bytes(change.saves)}, then {answer.then(change)}"
            command = f"<br><code>{escape(change.command)}</code>" if change.command else ""
            yield f"<li>{escape(saves)}{command}</li>"
        yield "</ol>"


def _peak(report: Report) -> Iterator[str]:
    peak = report.peak
    yield (
        f"<p><strong>peak {format_bytes(peak.allocated)} allocated</strong> "
        f"({format_exact(peak.allocated)})<br>{escape(answer.where(peak))}"
    )
    lines = (*answer.bounds_in_words(report), *answer.host_in_words(report))
    yield "".join(f"<br>{escape(line)}" for line in lines)
    yield "</p>"


def _timeline(report: Report) -> Iterator[str]:
    """Bars of the highest bytes, with a line at the card's capacity."""
    if not report.timeline:
        return
    card = report.on_card
    highest = max(report.timeline) or 1
    end = card.capacity if card is not None and card.capacity < 1.8 * highest else 0
    top = max(highest, end)
    width = _WIDTH / len(report.timeline)
    yield (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="100%" style="max-width:{_WIDTH}px" '
        f'role="img" aria-label="allocated bytes over the trace, at most {format_bytes(highest)}">'
    )
    for i, nbytes in enumerate(report.timeline):
        height = _HEIGHT * nbytes / top
        colour = _RED if end and nbytes > end else "#4c78a8"
        yield (
            f'<rect x="{i * width:.1f}" y="{_HEIGHT - height:.1f}" width="{width:.1f}" '
            f'height="{height:.1f}" fill="{colour}"/>'
        )
    if end:
        y = _HEIGHT * (1 - end / top)
        yield f'<line x1="0" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="{_RED}"/>'
    yield "</svg>"


def _categories(report: Report) -> Iterator[str]:
    yield "<p>"
    for category, nbytes in sorted(report.at_peak.by_category.items(), key=lambda item: -item[1]):
        if nbytes:
            colour = CATEGORY_COLOURS[category]
            yield (
                f'<span style="color:{colour}">&#9632;</span> {escape(CATEGORY_NAMES[category])} '
                f"{format_bytes(nbytes)} &ensp; "
            )
    yield "</p>"


def _holders(report: Report) -> Iterator[str]:
    groups = groups_of(report.at_peak.holders)[:_SHOWN]
    if not groups:
        return
    yield "<table><thead><tr><th>bytes</th><th>what</th><th>line</th><th>why</th></tr></thead>"
    for group in groups:
        first, count = group.first, len(group.holders)
        times = f"{count} x {format_bytes(first.bytes)}, " if count > 1 else ""
        shape = format_shape(first.shape)
        what = f"{group.modules} {times}{first.dtype} [{shape}]".strip()
        cells = (format_bytes(group.bytes), what, first.source or "", group.reason)
        yield "".join(["<tr>", *(f"<td>{escape(cell)}</td>" for cell in cells), "</tr>"])
    yield "</table>"
