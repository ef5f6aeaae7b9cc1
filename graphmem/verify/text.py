"""Verification as text: tables, and the events around the first difference."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from rich.table import Table
from rich.text import Text

from graphmem.plain_text import Console
from graphmem.torch_releases import parse_release
from graphmem.torch_releases.release import written
from graphmem.verify.allocator_check import AllocatorCheck
from graphmem.verify.changes import Change
from graphmem.verify.comparison import Comparison
from graphmem.verify.suite import PrintedRow, Rows, Suite, SuiteRow

_WIDTH = 240  # wider than any table here
_CONTEXT = 4
_SIZES = 8
SUITE_COLUMNS = (
    *("GPU", "torch", "events", "first mismatch"),
    *("peak allocated, predicted", "recorded", "error"),
    *("peak reserved, predicted", "recorded", "error"),
)
PRINTED_COLUMNS = ("GPU", "torch", "what", "predicted", "printed", "error")
_TRACED_BY = "traced by"
_FIGURES = (
    ("base_allocated", "allocated before"),
    ("peak_allocated", "peak allocated"),
    ("end_allocated", "end allocated"),
    ("peak_reserved", "peak reserved"),
    ("end_reserved", "end reserved"),
)


def rendered(lines: Iterable[Text | Table], *, colour: bool = False) -> str:
    """Render tables and lines as text that is never wrapped."""
    buffer = io.StringIO()
    console = Console(file=buffer, width=_WIDTH, highlight=False, force_terminal=colour)
    for line in lines:
        console.print(line, soft_wrap=True)
    return buffer.getvalue()


def allocator_table(checks: Sequence[AllocatorCheck]) -> Iterator[Text | Table]:
    """One row per recording, then the first misses."""
    table = _table("recording", "events", "misses", "peak allocated", "end allocated", "reserved")
    for check in checks:
        replay = check.replay
        if replay is None:
            table.add_row(check.name, "not replayed")
            continue
        figures = (replay.peak_allocated, replay.end_allocated, replay.peak_reserved)
        cells = (replay.events, replay.misses, *figures)
        table.add_row(check.name, *(f"{cell:,}" for cell in cells))
    yield table
    for check in checks:
        if check.replay is None:
            yield Text(f"{check.name}: does not have the state before its first event")
        elif check.replay.first_miss is not None:
            miss = check.replay.first_miss
            yield Text(f"{check.name}: first miss at event {miss.index}: {miss.what}")


def comparison_text(comparison: Comparison) -> Iterator[Text | Table]:
    """The first events that differ, those around them, and the figures of both sides."""
    yield Text(f"{comparison.name} against {comparison.target}, from {comparison.start} on")
    yield Text(
        f"events: {len(comparison.recorded):,} recorded, {len(comparison.predicted):,} predicted"
    )
    yield from _first_difference(comparison)
    for title, sizes in (
        ("only recorded", comparison.only_recorded),
        ("only predicted", comparison.only_predicted),
    ):
        if sizes:
            yield Text(f"{title}: {_sizes(sizes)}")
    yield _figures(comparison)


def _first_difference(comparison: Comparison) -> Iterator[Text]:
    index = comparison.first_difference
    if index is None:
        yield Text("every event is equal")
        return
    yield Text(f"the first difference is at event {index}:", style="bold red")
    for title, side in (("recorded", comparison.recorded), ("predicted", comparison.predicted)):
        yield Text(title)
        for at in range(max(0, index - _CONTEXT), min(len(side), index + _CONTEXT + 1)):
            yield Text(f"{'>' if at == index else ' '} {at:>6} {side[at]}")
        if index >= len(side):
            yield Text(f"> {index:>6} (ends here)")


def _sizes(sizes: Sequence[tuple[int, int]]) -> str:
    shown = ", ".join(f"{count} x {nbytes:,}" for nbytes, count in sizes[:_SIZES])
    return shown + (f" and {len(sizes) - _SIZES} more sizes" if len(sizes) > _SIZES else "")


def _figures(comparison: Comparison) -> Table:
    table = _table("bytes", "recorded", "predicted", "error")
    recorded, predicted = comparison.recorded_figures, comparison.predicted_figures
    for field, label in _FIGURES:
        value = getattr(predicted, field)
        if recorded is None:
            table.add_row(label, "unknown", f"{value:,}", "")
            continue
        truth = getattr(recorded, field)
        table.add_row(label, f"{truth:,}", f"{value:,}", f"{value - truth:,}")
    return table


def suite_table(suite: Suite) -> Iterator[Text | Table]:
    """The accuracy tables, then the causes of known gaps and the first events that differ."""
    if suite.recorded:
        table = _table("case", *SUITE_COLUMNS, _TRACED_BY)
        for row in suite.recorded:
            table.add_row(row.case.name, *suite_cells(row), written(row.traced_by))
        yield table
        for row in suite.recorded:
            yield from _remarks(row)
    if suite.printed:
        table = _table("case", *PRINTED_COLUMNS, _TRACED_BY)
        for printed in suite.printed:
            cells = printed_cells(printed)
            table.add_row(printed.case.name, *cells, written(printed.traced_by))
        yield table
        for printed in suite.printed:
            yield from _printed_remarks(printed)
    yield Text(_releases(suite))


def _releases(suite: Suite) -> str:
    """Which releases traced the cases; their own one decides the rules of the card."""
    rows: Rows = [*suite.recorded, *suite.printed]
    cases = {row.case.name: (row.case.request.torch, row.traced_by) for row in rows}
    own = sum(torch is None or parse_release(torch) == used for torch, used in cases.values())
    counts = Counter(used for _, used in cases.values())
    if len(counts) == 1:
        text = f"traced by torch {written(*counts)}, the release of {own} of {len(cases)} cases"
    else:
        each = ", ".join(f"{written(used)} ({counts[used]})" for used in sorted(counts))
        text = f"traced by torch {each}; {own} of {len(cases)} cases by their own release"
    return text if own == len(cases) else f"{text}; the others have the card's rules of theirs"


def suite_cells(row: SuiteRow) -> tuple[str, ...]:
    """A case's cells under `SUITE_COLUMNS`; "?" for what the recording does not have."""
    comparison = row.comparison
    machine = (row.gpu.name, row.case.request.torch or "")
    if comparison is None:
        return (*machine, "no recording", *[""] * 7)
    index = comparison.first_difference
    events = (f"{len(comparison.recorded):,}", "none" if index is None else f"{index:,}")
    recorded, predicted = comparison.recorded_figures, comparison.predicted_figures
    figures: list[str] = []
    for field in ("peak_allocated", "peak_reserved"):
        value = getattr(predicted, field)
        truth = None if recorded is None else getattr(recorded, field)
        figures += (
            f"{value:,}",
            "?" if truth is None else f"{truth:,}",
            "?" if truth is None else f"{value - truth:,}",
        )
    return (*machine, *events, *figures)


def printed_cells(row: PrintedRow) -> tuple[str, ...]:
    """A printed figure's cells under `PRINTED_COLUMNS`."""
    return (
        row.gpu.name,
        row.case.request.torch or "",
        str(row.figure),
        f"{row.predicted:,}",
        row.figure.printed.text,
        f"{row.error:,}",
    )


def _printed_remarks(row: PrintedRow) -> Iterator[Text]:
    if row.has_failed:
        yield Text(
            f"{row.case.name}: {row.figure}: the error is {row.error:,} bytes, "
            f"the case expects {row.figure.known_error:,}",
            style="bold red",
        )
    if row.figure.gap:
        yield Text(f"{row.case.name}: {row.figure}: known gap: {row.figure.gap}")


def _remarks(row: SuiteRow) -> Iterator[Text]:
    comparison = row.comparison
    if row.case.gap:
        is_closed = comparison is not None and comparison.is_equal
        kind = "equal now, although the case has a gap" if is_closed else "known gap"
        yield Text(f"{row.case.name}: {kind}: {row.case.gap}")
    if comparison is None or comparison.first_difference is None:
        return
    index = comparison.first_difference
    style = "bold red" if row.has_failed else ""
    yield Text(f"{row.case.name} differs from event {index:,} on:", style=style)
    yield Text(f"  recorded  {_change_at(comparison.recorded, index)}")
    yield Text(f"  predicted {_change_at(comparison.predicted, index)}")


def _change_at(side: Sequence[Change], index: int) -> str:
    return str(side[index]) if index < len(side) else "(ends here)"


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first)
    for heading in others:
        table.add_column(heading, justify="right")
    return table
