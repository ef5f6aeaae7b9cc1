"""The largest batch that fits, near the one that was traced.

The reserved bytes of a step grow with the batch nearly on a line. So the search begins where the
line from what no batch at all would take (parameters, gradients, the optimizer's state) to what was
traced meets the card's room, and goes on between the nearest values that were tried. Each try is a
whole analysis. `graphmem fit` tries more, and says where the order is broken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from graphmem.graph import Category
from graphmem.report.schema import Report

_FIXED = (
    Category.PARAMETER,
    Category.BUFFER,
    Category.GRADIENT,
    Category.OPTIMIZER_STATE,
    Category.AUTOCAST_CACHE,
    Category.WORKSPACE,
)


@dataclass(frozen=True)
class Largest:
    """What a search found.

    Attributes:
        fits: the largest that fits of those that were tried, 0 where none does.
        fails: the smallest that does not, or None.
    """

    fits: int
    fails: int | None

    @property
    def is_exact(self) -> bool:
        """Whether nothing lies between both."""
        return self.fails == self.fits + 1


class Search:
    """Narrows the border down, from one report."""

    def __init__(self, size: int, report: Report, measure: Callable[[int], Report]) -> None:
        """Of a batch of `size`, which has been traced; `measure` traces another."""
        at_peak = report.at_peak.by_category
        self._measure = measure
        self._fixed = sum(at_peak[category] for category in _FIXED)
        self._low = 0, self._fixed
        self._high: tuple[int, int] | None = None
        self._capacity = self._note(size, report)

    def run(self, tries: int) -> Largest:
        """Try at most so many batches."""
        while tries and (guess := self._guess()) is not None:
            self._note(guess, self._measure(guess))
            tries -= 1
        return Largest(self._low[0], None if self._high is None else self._high[0])

    def _note(self, size: int, report: Report) -> int:
        memory = report.memory
        assert memory is not None
        if memory.on_card.fits:
            self._low = size, memory.reserved
        else:
            self._high = size, memory.reserved
        return memory.on_card.capacity

    def _guess(self) -> int | None:
        """Where the line meets the room; None where there is nothing left to try."""
        low, reserved = self._low
        room = self._capacity - reserved
        if self._high is None:
            each = (reserved - self._fixed) / low
            return low + max(1, int(room / each)) if each > 0 else None
        high, most = self._high
        if high - low == 1:
            return None
        share = room / (most - reserved) if most > reserved else 0.5
        return min(max(low + int(share * (high - low)), low + 1), high - 1)
