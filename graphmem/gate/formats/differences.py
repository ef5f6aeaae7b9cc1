"""The output of `graphmem diff` as text, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from graphmem.gate.diff import Diff, ReportDifference
from graphmem.gate.formats.markdown import escaped
from graphmem.gate.formats.messages import cause, in_words, signed
from graphmem.json_text import json_text
from graphmem.report.categories import CATEGORY_NAMES
from graphmem.report.schema import ROUNDING, Peak
from graphmem.units import counted, format_bytes, format_exact

_LISTED = 20


def diffs_as_text(diffs: Sequence[Diff], listed: int = _LISTED) -> str:
    """Format differences for a terminal or a log, the first ones of each."""
    return "\n".join("".join(f"{line}\n" for line in _lines(diff, listed)) for diff in diffs)


def diffs_as_markdown(diffs: Sequence[Diff]) -> str:
    """Format differences for a comment on a pull request."""
    lines = []
    for diff in diffs:
        headline, *details = _lines(diff)
        lines += [f"#### {escaped(headline)}", ""]
        lines += [f"- {escaped(line)}" for line in details]
        lines.append("")
    return "".join(f"{line}\n" for line in lines)


def diffs_as_json(diffs: Sequence[Diff]) -> str:
    """Format differences as a list of `graphmem.diff/1`."""
    return json_text(diffs)


DIFF_FORMATS: Mapping[str, Callable[[Sequence[Diff]], str]] = MappingProxyType(
    {"text": diffs_as_text, "markdown": diffs_as_markdown, "json": diffs_as_json}
)


def _lines(diff: Diff, listed: int = _LISTED) -> list[str]:
    before, after = diff.before.allocated, diff.after.allocated
    change = signed(diff.growth) if diff.growth else "same"
    lines = [f"{diff.name}: {change}, peak {format_exact(before)} -> {format_exact(after)}"]
    lines += [f"  {cause(each)}" for each in diff.checkpointing]
    lines += [f"  {_line(each)}" for each in diff.differences[:listed]]
    left = len(diff.differences) - listed
    if left > 0:
        lines.append(f"  and {counted(left, 'more difference')}")
    lines += [f"  {line}" for line in _rounding(diff)]
    places = [_place(peak) for peak in (diff.before, diff.after)]
    if places[0] != places[1]:
        lines.append(f"  the peak moved from {places[0]} to {places[1]}")
    return lines


def _rounding(diff: Diff) -> Iterator[str]:
    """What the allocator's blocks add to the differences, which are of requested bytes."""
    before, after = (peak.allocated - peak.requested for peak in (diff.before, diff.after))
    if before != after:
        kind = "grew" if after > before else "shrank"
        yield (
            f"{signed(after - before)} {kind}: {CATEGORY_NAMES[ROUNDING]}; "
            f"{format_exact(before)} -> {format_exact(after)}"
        )


def _line(each: ReportDifference) -> str:
    size = signed(each.growth) if each.growth else format_bytes(each.after * each.layers)
    layers = f" in each of {each.layers}" if each.layers > 1 else ""
    category, _, module = (each.moved_from or "").partition(" in ")
    origin = f" from {in_words(category)} in {module}" if module else ""
    place = f"in {each.module}" if each.module else "outside any module"
    where = f" ({each.source})" if each.source else ""
    return (
        f"{size} {each.kind}{origin}: {in_words(each.category)} {place}{where}, "
        f"{each.op or 'no operation'}, {each.owner}; "
        f"{format_exact(each.before)} -> {format_exact(each.after)}{layers}"
    )


def _place(peak: Peak) -> str:
    where = f" in {peak.module}" if peak.module else ""
    op = f" at {peak.op.removesuffix('.default')}" if peak.op else ""
    return f"{peak.phase}{op}{where}"
