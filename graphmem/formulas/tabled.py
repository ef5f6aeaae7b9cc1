"""Tables of formulas: figures in rows, or text as a source's own program prints it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType

from graphmem.formulas.deepspeed import Estimate
from graphmem.formulas.exact import Traced

UNITS: Mapping[str, int] = MappingProxyType({"TB": 10**12, "GB": 10**9, "MiB": 2**20})


@dataclass(frozen=True)
class Table:
    """A source's figures for several ways to train.

    Attributes:
        columns: names of the columns.
        rows: bytes by the name of the row.
        notes: sentences that belong to the table.
        unit: one of `UNITS`, the unit that the source uses.
        counts: the columns that are plain numbers, not bytes.
        left: free bytes on the card by row, negative if it does not fit.
        least: the fewest micro-batches with which a row fits; None if no number is enough.
    """

    columns: tuple[str, ...]
    rows: Mapping[str, tuple[Fraction, ...]]
    notes: tuple[str, ...] = ()
    unit: str = "GB"
    counts: frozenset[str] = frozenset()
    left: Mapping[str, Fraction] = field(default_factory=dict)
    least: Mapping[str, int | None] = field(default_factory=dict)

    @property
    def head(self) -> str:
        """The unit of its figures; empty if none are bytes."""
        if self.counts.issuperset(self.columns):
            return ""
        return {"GB": "GB (10^9 bytes)", "TB": "TB (10^12 bytes)"}.get(self.unit, self.unit)

    def format(self, column: str, figure: Fraction) -> str:
        """Format a figure of a column."""
        if column in self.counts:
            return f"{float(figure):,.2f}" if figure.denominator > 1 else f"{int(figure):,}"
        return format_in(self.unit, figure)


@dataclass(frozen=True)
class Printed:
    """The output of a source's own program, and the rows of its table if it has one.

    Attributes:
        text: the output, unchanged.
        rows: the rows of the table.
        left: free bytes on the card by row or case, negative if it does not fit.
    """

    text: str
    rows: tuple[Estimate, ...] = ()
    left: Mapping[str, Fraction] = field(default_factory=dict)


@dataclass(frozen=True)
class Tabled:
    """A table from a source.

    Attributes:
        name: its name for `--only`.
        title: one line.
        source: who published it.
        needs: the terms that it requires.
        fill: returns its text as the source prints it, or its figures; called with terms and the
            traced step, None without a target.
        of_degrees: whether it requires a degree of parallelism.
    """

    name: str
    title: str
    source: str
    needs: tuple[str, ...]
    fill: Callable[[Mapping[str, int], Traced | None], Printed | Table]
    of_degrees: bool = False


def format_in(unit: str, nbytes: Fraction, digits: int = 3) -> str:
    """Format bytes in a unit of `UNITS`, which the head of the table names."""
    return f"{float(nbytes / UNITS[unit]):,.{digits}f}"


def left_of_card(
    numbers: Mapping[str, int], held: Mapping[str, Fraction | int]
) -> dict[str, Fraction]:
    """Free bytes on the card after each of these, if a card is given."""
    if "memory" not in numbers:
        return {}
    return {name: Fraction(numbers["memory"] - nbytes) for name, nbytes in held.items()}
