"""Figures that a run printed: what was measured, when, and with how many digits.

A *figure* is named by a statistic and a moment as in graphmem/verify/window.py:
  (1) `allocated before M`, `allocated after M`, `reserved after M`: the bytes in use, or held from
      the driver, when the moment M began or was over;
  (2) `max allocated in M`, `max reserved in M`: their maximum during M, as after
      `reset_peak_memory_stats` at its beginning;
  (3) `max allocated from M`, `max reserved from M`: the same until the end of the trace;
  (4) `allocated when full at N GiB`, `unallocated when full at N GiB`: the bytes in use, and the
      bytes held but unused, when a request fails because the allocator may have no more than that.

A *quantity* is the printed number. A prediction agrees with it if it would have been printed the
same: with as many digits or, if the number was converted to a float32, as the same float32.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from struct import pack

from graphmem.units import parse_bytes
from graphmem.verify.messages import NotFigureError, NothingFailsError, NotPrintedBytesError
from graphmem.verify.prediction import Prediction
from graphmem.verify.window import Start, parse_start

_STATISTICS = {
    "allocated before": "base_allocated",
    "allocated after": "end_allocated",
    "reserved after": "end_reserved",
    "max allocated in": "peak_allocated",
    "max reserved in": "peak_reserved",
    "max allocated from": "peak_allocated",
    "max reserved from": "peak_reserved",
}
_FIGURE = re.compile(rf"(?P<statistic>{'|'.join(_STATISTICS)}) (?P<moment>.+)")
_SHORTAGE = re.compile(r"(?P<statistic>allocated|unallocated) when full at (?P<room>.+)")
_QUANTITY = re.compile(r"(?P<whole>\d+)(?:\.(?P<decimals>\d+))?(?: (?P<unit>[A-Za-z]+))?")


@dataclass(frozen=True)
class Figure:
    """One number from a run, such as `max allocated in step 2`."""

    statistic: str
    moment: Start

    def __str__(self) -> str:
        return f"{self.statistic} {self.moment}"

    def of(self, prediction: Prediction) -> int:
        """The predicted bytes.

        Raises:
            InputError: the prediction has no such moment.
        """
        last = None if self.statistic.endswith("from") else self.moment
        figures = prediction.figures(self.moment, last)
        nbytes = getattr(figures, _STATISTICS[self.statistic])
        assert isinstance(nbytes, int)
        return nbytes


@dataclass(frozen=True)
class Shortage:
    """One number from an out-of-memory message, such as `allocated when full at 78 GiB`."""

    statistic: str
    room: str

    def __str__(self) -> str:
        return f"{self.statistic} when full at {self.room}"

    def of(self, prediction: Prediction) -> int:
        """The predicted bytes.

        Raises:
            InputError: no request fails.
        """
        state = prediction.shortage(parse_bytes(self.room))
        if state is None:
            raise NothingFailsError(self.room)
        if self.statistic == "allocated":
            return state.allocated_bytes
        return state.reserved_bytes - state.allocated_bytes


def parse_figure(text: str) -> Figure | Shortage:
    """Parse the name of a figure.

    Raises:
        InputError: it does not name a figure.
    """
    shortage = _SHORTAGE.fullmatch(text)
    if shortage is not None:
        return Shortage(shortage["statistic"], shortage["room"])
    match = _FIGURE.fullmatch(text)
    if match is None:
        raise NotFigureError(text, ", ".join(_STATISTICS))
    return Figure(match["statistic"], parse_start(match["moment"]))


@dataclass(frozen=True)
class Quantity:
    """Bytes as they were printed.

    Attributes:
        text: the number with its unit.
        number: the number alone.
        unit_bytes: bytes of the unit.
        decimals: digits after the point.
        is_float32: whether the number was converted to a float32.
    """

    text: str
    number: Fraction
    unit_bytes: int
    decimals: int
    is_float32: bool

    def error_of(self, nbytes: int) -> int:
        """Predicted minus printed, in bytes; 0 if both would have been printed the same."""
        number = Fraction(nbytes, self.unit_bytes)
        is_equal = self._as_printed(number) == self._as_printed(self.number)
        return 0 if is_equal else nbytes - round(self.number * self.unit_bytes)

    def _as_printed(self, number: Fraction) -> bytes | Fraction:
        return pack("f", number) if self.is_float32 else round(number, self.decimals)


def parse_quantity(text: str, *, is_float32: bool = False) -> Quantity:
    """Parse a number of bytes such as "38912" or "40.00 KiB".

    Raises:
        InputError: it is not a number of bytes.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise NotPrintedBytesError(text)
    decimals = match["decimals"] or ""
    return Quantity(
        text=text,
        number=Fraction(f"{match['whole']}.{decimals or 0}"),
        unit_bytes=parse_bytes(f"1 {match['unit'] or 'bytes'}"),
        decimals=len(decimals),
        is_float32=is_float32,
    )


@dataclass(frozen=True)
class PrintedFigure:
    """One figure that a run printed.

    Attributes:
        figure: what was measured.
        printed: the printed number.
        settings: of the target, in addition to those of the case.
        known_error: bytes by which the prediction is known to differ.
        gap: why; empty if it must be equal.
    """

    figure: Figure | Shortage
    printed: Quantity
    settings: Mapping[str, str]
    known_error: int
    gap: str

    def __str__(self) -> str:
        return ", ".join((str(self.figure), *(f"{k}={v}" for k, v in self.settings.items())))
