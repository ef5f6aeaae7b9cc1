"""Compare a training step before and after changes, both traced exactly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphmem.graph import Category, PhaseName

if TYPE_CHECKING:
    from graphmem.report import Report

SCHEMA = "graphmem.whatif/1"


@dataclass(frozen=True)
class BeforeAfter:
    """One figure before and after, in bytes."""

    name: str
    before: int
    after: int

    @property
    def change(self) -> int:
        """The added bytes; negative for a saving."""
        return self.after - self.before


@dataclass(frozen=True, repr=False)
class ReportComparison:
    """Two reports of one target."""

    before: Report
    after: Report

    @property
    def peak(self) -> BeforeAfter:
        """The peak of allocated bytes."""
        return BeforeAfter("peak allocated", self.before.peak.allocated, self.after.peak.allocated)

    def rows(self) -> Iterator[BeforeAfter]:
        """The peak by category, then the usual sums."""
        for category in (*Category, "rounding"):
            before = self.before.at_peak.by_category[str(category)]
            after = self.after.at_peak.by_category[str(category)]
            if before or after:
                yield BeforeAfter(str(category), before, after)
        yield self.peak
        yield BeforeAfter("peak reserved", self.before.peak.reserved, self.after.peak.reserved)
        yield BeforeAfter(
            "saved for backward", self.before.saved_for_backward, self.after.saved_for_backward
        )
        for name in (PhaseName.FORWARD, PhaseName.BACKWARD, PhaseName.OPTIMIZER):
            yield BeforeAfter(
                f"peak of {name}", _peak_of(self.before, name), _peak_of(self.after, name)
            )
        memory = self.before.memory, self.after.memory
        if memory[0] is not None and memory[1] is not None:
            yield BeforeAfter(
                "left on the card", memory[0].on_card.margin, memory[1].on_card.margin
            )

    def __str__(self) -> str:
        from graphmem.advice.comparison_table import comparison_table
        from graphmem.plain_text import plain_text

        return plain_text(lambda console: console.print(comparison_table(self))).rstrip("\n")

    def __repr__(self) -> str:
        """The table, which is what a notebook shows."""
        return str(self)

    def to_json(self) -> str:
        """The rows as JSON."""
        rows = [
            {"name": row.name, "before": row.before, "after": row.after, "change": row.change}
            for row in self.rows()
        ]
        operations = {"before": self.before.operations, "after": self.after.operations}
        found = {
            "schema": SCHEMA,
            "target": self.before.target,
            "rows": rows,
            "operations": operations,
        }
        return json.dumps(found, indent=2) + "\n"


def _peak_of(report: Report, name: PhaseName) -> int:
    phases = (phase for step in report.steps for phase in step.phases)
    return max((phase.peak for phase in phases if phase.name == name), default=0)
