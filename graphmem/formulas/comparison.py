"""Compare a formula with the exact result, part by part, and list what it leaves out.

Each part is compared with the bytes of the roles that it covers; a role that no part covers is
listed as left out, with its bytes. So the differences add up to the whole difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphmem.formulas.estimate import Formula, FormulaPart
from graphmem.formulas.exact import Exact


@dataclass(frozen=True)
class ComparedPart:
    """One part, or one role that the formula leaves out (`expression` is None)."""

    name: str
    expression: str | None
    estimate: int
    exact: int

    @property
    def difference(self) -> int:
        """The bytes that the formula lacks; negative if its estimate is too large."""
        return self.exact - self.estimate


@dataclass(frozen=True)
class FormulaComparison:
    """A formula with values, compared with an exact result if there is one.

    Attributes:
        formula: the formula.
        parts: its values.
        rows: part by part, then what it leaves out, largest first; empty without a target.
        of: what is estimated, in words.
    """

    formula: Formula
    parts: Sequence[FormulaPart]
    rows: Sequence[ComparedPart]
    of: str

    @property
    def estimate(self) -> int:
        """The formula's estimate in bytes."""
        return sum(part.bytes for part in self.parts)

    @property
    def exact(self) -> int | None:
        """The exact bytes; None without a target."""
        return sum(row.exact for row in self.rows) if self.rows else None

    @property
    def difference(self) -> int | None:
        """The bytes that the formula lacks: the sum of the rows' differences."""
        return sum(row.difference for row in self.rows) if self.rows else None


def compare(
    formula: Formula, parts: Sequence[FormulaPart], exact: Exact | None, of: str
) -> FormulaComparison:
    """Compare a formula's parts with the exact result, if there is one.

    Args:
        formula: the formula.
        parts: its values.
        exact: the exact result.
        of: what is estimated, in words.
    """
    if exact is None:
        return FormulaComparison(formula, parts, (), of)
    rows = [
        ComparedPart(
            part.name,
            part.expression,
            part.bytes,
            sum(nbytes for role, nbytes in exact.by_role.items() if part.stands_for(role)),
        )
        for part in parts
    ]
    left_out = [
        ComparedPart(str(role), None, 0, nbytes)
        for role, nbytes in exact.by_role.items()
        if nbytes and not any(part.stands_for(role) for part in parts)
    ]
    rows += sorted(left_out, key=lambda row: -abs(row.exact))
    return FormulaComparison(formula, parts, rows, of)
