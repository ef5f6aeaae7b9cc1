"""What a table of formulas is: figures in rows, or text as a source's own program prints it."""

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
    """Figures that a source has for several ways to train.

    Attributes:
        columns: what they are of.
        rows: bytes by what they are under.
        notes: sentences beside them.
        unit: one of `UNITS`, which the source counts in.
        counts: the columns that are plain numbers, not bytes.
        left: what of the card a row leaves, negative where it does not fit.
        least: with how many micro-batches a row fits; None where no number is enough.
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
        """What its figures are in; empty where none is of bytes."""
        if self.counts.issuperset(self.columns):
            return ""
        return {"GB": "GB (10^9 bytes)", "TB": "TB (10^12 bytes)"}.get(self.unit, self.unit)

    def format(self, column: str, figure: Fraction) -> str:
        """A figure of a column, as text."""
        if column in self.counts:
            return f"{float(figure):,.2f}" if figure.denominator > 1 else f"{int(figure):,}"
        return format_in(self.unit, figure)


@dataclass(frozen=True)
class Printed:
    """What a source's own program prints, and the rows of its table where it has one.

    Attributes:
        text: as it is.
        rows: of the table.
        left: what of the card each row or case leaves, negative where it does not fit.
    """

    text: str
    rows: tuple[Estimate, ...] = ()
    left: Mapping[str, Fraction] = field(default_factory=dict)


@dataclass(frozen=True)
class Tabled:
    """What a source has besides single formulas.

    Attributes:
        name: what `--only` calls it.
        title: one line.
        source: who published it.
        needs: the terms without which it says nothing.
        fill: its text as the source prints it, or its figures; called with terms and the traced
            step, None without a target.
        of_degrees: whether it says nothing without a degree of parallelism.
    """

    name: str
    title: str
    source: str
    needs: tuple[str, ...]
    fill: Callable[[Mapping[str, int], Traced | None], Printed | Table]
    of_degrees: bool = False


def format_in(unit: str, nbytes: Fraction, digits: int = 3) -> str:
    """Bytes in a unit of `UNITS`, which stands in the head of the table."""
    return f"{float(nbytes / UNITS[unit]):,.{digits}f}"


def left_of_card(
    numbers: Mapping[str, int], held: Mapping[str, Fraction | int]
) -> dict[str, Fraction]:
    """What the card leaves beside each of these, where there is one."""
    if "memory" not in numbers:
        return {}
    return {name: Fraction(numbers["memory"] - nbytes) for name, nbytes in held.items()}
