"""Search for the largest size of a step that fits, with as few traces as possible.

Clauses:
  (1) with nothing known, the smallest value is tried first, then the one at which a line from the
      bytes of size zero meets the card's capacity;
  (2) from two similar traces, or from a large one, the border is predicted (`other_sizes.py`), and
      the values on both sides are tried: if one fits and the other does not, it is proven;
  (3) without a prediction, or after `_FORETOLD` wrong ones, values grow until one does not fit, at
      most doubling; between the last that fits and the first that does not, the next value is
      alternately where a line through the reserved bytes of both meets the capacity, and the
      middle.

The search assumes that all smaller values fit as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from graphmem.graph import Category
from graphmem.other_sizes import Line, Sizes, large_prime_of
from graphmem.report.schema import Report
from graphmem.runtime import Runtime

_FORETOLD = 4
_NEAR = 4
_FIXED = (
    Category.PARAMETER,
    Category.BUFFER,
    Category.GRADIENT,
    Category.OPTIMIZER_STATE,
    Category.AUTOCAST_CACHE,
    Category.WORKSPACE,
)


@dataclass(frozen=True)
class Tried:
    """The result for one value: whether it fits, and more from its trace.

    Attributes:
        fixed: approximately the bytes that do not grow with the value.
        sizes: what it allocates and frees; None if unknown.
    """

    fits: bool
    reserved: int
    capacity: int
    fixed: int
    sizes: Sizes | None

    @classmethod
    def of(cls, report: Report, sizes: Sizes | None) -> Tried:
        """Take the result from an analysis."""
        memory = report.memory
        assert memory is not None
        fixed = sum(report.at_peak.by_category[category] for category in _FIXED)
        card = memory.on_card
        return cls(card.fits, memory.reserved, card.capacity, fixed, sizes)


@dataclass(frozen=True)
class Values:
    """The values to try: multiples of `unit` from `first` to `last`, both included."""

    first: int
    last: int
    unit: int = 1

    def rounded(self, value: int) -> int:
        """The largest multiple not above a value."""
        return value // self.unit * self.unit

    def has(self, value: int) -> bool:
        """Whether a multiple lies in the range."""
        return self.first <= value <= self.last


class _OutOfTriesError(Exception):
    """The limit on tries is reached."""


class Border:
    """Narrows down the border between values that fit and values that do not.

    Attributes:
        tried: the results, by value.
        low: the largest tried value that fits, or None.
        high: the smallest tried value above it that does not, or None.
    """

    def __init__(
        self,
        values: Values,
        measure: Callable[[int], Tried],
        runtime: Runtime,
        others: Mapping[int, Sizes] | None = None,
        tries: int | None = None,
    ) -> None:
        """Start without results.

        Args:
            values: the values to try.
            measure: tries a value.
            runtime: the card.
            others: sizes known from another card's search.
            tries: the most values to measure.
        """
        self.tried: dict[int, Tried] = {}
        self.low: int | None = None
        self.high: int | None = None
        self._values = values
        self._measure = measure
        self._runtime = runtime
        self._others = others or {}
        self._tries = tries
        self._by_line = False

    def know(self, value: int, tried: Tried) -> None:
        """Record the result for a value."""
        self.tried[value] = tried
        if tried.fits:
            self.low = value if self.low is None else max(self.low, value)
            if self.high is not None and self.high < self.low:
                self.high = None
        elif self.low is None or value > self.low:
            self.high = value if self.high is None else min(self.high, value)

    def find(self) -> None:
        """Try values until none lies between `low` and `high`, or the tries are used up."""
        foretold = 0
        with suppress(_OutOfTriesError):
            while not self._is_closed:
                line = self._line() if foretold < _FORETOLD else None
                if line is None:
                    self._fits(self._next())
                    continue
                foretold += 1
                border = self._border_of(line)
                for value in (border, border + self._values.unit):
                    if self._values.has(value):
                        self._fits(value)

    def foretells(self, value: int) -> bool | None:
        """Whether a value is predicted to fit; None without a prediction."""
        line = self._line()
        return None if line is None else line.fits(value, self._runtime)

    def _fits(self, value: int) -> bool:
        if value not in self.tried:
            if self._tries is not None:
                if not self._tries:
                    raise _OutOfTriesError
                self._tries -= 1
            self.know(value, self._measure(value))
        return self.tried[value].fits

    @property
    def _is_closed(self) -> bool:
        values = self._values
        if self.low is None:
            return self.high == values.first
        if self.high is None:
            return self.low == values.last
        return self.high - self.low <= values.unit

    def _line(self) -> Line | None:
        """The line through this card's traces, or else another's."""
        own = {value: each.sizes for value, each in self.tried.items() if each.sizes is not None}
        found = Line.through(own) or Line.through({**self._others, **own})
        if found is None and len(own) > 1:
            found = Line.alone(max(own), own[max(own)])
        return found

    def _next(self) -> int:
        """Clauses (1) and (3)."""
        values = self._values
        if not self.tried or (self.low is None and self.high is None):
            return values.first
        if len(self.tried) == 1 and self._knows_sizes:
            likely = self._between(self._where_the_room_ends(next(iter(self.tried))))
            near = range(likely, likely - _NEAR * values.unit, -values.unit)
            return next((each for each in near if self._is_telling(each)), likely)
        if self.high is None:
            assert self.low is not None
            twice = min(2 * self.low, values.last)
            likely = self._where_the_room_ends(self.low)
            return self._between(min(likely, twice) if self._knows_sizes else twice)
        if self.low is None:
            return values.first
        self._by_line = not self._by_line
        middle = (self.low + self.high) // 2
        return self._between(self._on_the_line(self.low, self.high) if self._by_line else middle)

    def _is_telling(self, value: int) -> bool:
        """Whether a trace of this value alone predicts others."""
        return self._between(value) == value and large_prime_of(value) is not None

    @property
    def _knows_sizes(self) -> bool:
        return any(each.sizes is not None for each in self.tried.values())

    def _where_the_room_ends(self, value: int) -> int:
        """The value at which a line from the fixed bytes through one value meets the capacity."""
        tried = self.tried[value]
        each = (tried.reserved - tried.fixed) / value
        return int((tried.capacity - tried.fixed) / each) if each > 0 else 2 * value

    def _between(self, value: int) -> int:
        """The multiple nearest to a value that is above `low` and below `high`."""
        values = self._values
        least = values.first if self.low is None else self.low + values.unit
        most = values.last if self.high is None else self.high - values.unit
        return min(max(values.rounded(value), least), most)

    def _border_of(self, line: Line) -> int:
        """The largest value predicted to fit; the one before the first if none is."""
        values, unit = self._values, self._values.unit
        low = values.first - unit if self.low is None else self.low
        high = values.rounded(values.last) + unit if self.high is None else self.high
        guess, step = self._met(line.second), unit
        while high - low > unit:
            if not low < guess < high:
                guess = values.rounded((low + high) // 2)
            if line.fits(guess, self._runtime):
                low, guess = guess, guess + step
            else:
                high, guess = guess, guess - step
            step *= 2
        return low

    def _met(self, otherwise: int) -> int:
        """The value at which a line through the two largest tried values meets the capacity."""
        points = sorted(self.tried.items())[-2:]
        if not points:
            return otherwise
        (one, least), (other, most) = points[0], points[-1]
        if most.reserved <= least.reserved:
            return self._values.rounded(otherwise)
        share = (least.capacity - least.reserved) / (most.reserved - least.reserved)
        return self._values.rounded(one + int(share * (other - one)))

    def _on_the_line(self, low: int, high: int) -> int:
        """Where reserved bytes meet the capacity if they grow evenly between both values."""
        least, most = self.tried[low], self.tried[high]
        growth = most.reserved - least.reserved
        share = (least.capacity - least.reserved) / growth if growth > 0 else 0.5
        return low + int(share * (high - low))
