"""A comparison as a table for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from graphmem.report.categories import CATEGORY_NAMES
from graphmem.units import format_bytes

if TYPE_CHECKING:
    from graphmem.advice.comparison import ReportComparison


_NAMES = max(map(len, CATEGORY_NAMES.values()))


def comparison_table(comparison: ReportComparison) -> Table:
    """One row for each figure: before, after, and the change."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("at the peak, bytes", min_width=_NAMES)
    for heading in ("before", "after", "change", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in comparison.rows():
        sign = "-" if row.change < 0 else "+"
        table.add_row(
            CATEGORY_NAMES.get(row.name, row.name),
            f"{row.before:,}",
            f"{row.after:,}",
            f"{row.change:+,}" if row.change else "0",
            f"{sign}{format_bytes(abs(row.change))}" if row.change else "",
        )
    table.add_row(
        "operations", f"{comparison.before.operations:,}", f"{comparison.after.operations:,}"
    )
    return table
