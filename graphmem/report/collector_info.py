"""How much of a run's peak depends on Python's cycle collector, as a report holds it."""

from __future__ import annotations

import msgspec


class HighestBytes(msgspec.Struct, frozen=True):
    """The highest bytes of a run, or of one in which the collector comes at other moments."""

    allocated: int
    reserved: int


class CollectorInfo(msgspec.Struct, frozen=True):
    """How much depends on when the collector runs.

    Attributes:
        freed: how many storages it freed without being asked.
        largest: the bytes of the largest.
        name: the variable that held that one, "" if none is known.
        shape, dtype: its first tensor's.
        source: the line of the variable, or of the operation that allocated it.
        lowest: the peak if each storage in a cycle is freed after its last use.
        highest: the peak if each stays until the program's next `gc.collect()`, or the end.
        margin: capacity of the card left at the highest, as in `OnCard`; None without a verdict.
    """

    freed: int
    largest: int
    name: str
    shape: list[int]
    dtype: str
    source: str | None
    lowest: HighestBytes
    highest: HighestBytes
    margin: int | None
