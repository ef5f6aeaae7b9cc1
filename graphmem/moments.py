"""The moments of a timeline, and a number for each storage.

A run of a million operations has more than a million, so they are kept as columns of numbers, and a
`Moment` is made when it is asked for.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import overload

from graphmem.events import Birth, CacheEmptied, Death, Event
from graphmem.graph import Storage


@dataclass(frozen=True, slots=True)
class Moment:
    """The device's bytes after one allocation or free, or after its cache was emptied.

    Several moments may share a tick: the steps of one kernel. `index` counts them all from 0.
    `event` is what led to the moment; None at the beginning.
    """

    index: int
    tick: int
    allocated: int
    requested: int
    reserved: int
    event: Event | None = None

    @property
    def born(self) -> Storage | None:
        """The storage that was allocated, or None."""
        return self.event.storage if isinstance(self.event, Birth) else None

    @property
    def died(self) -> Storage | None:
        """The storage that was freed, or None."""
        return self.event.storage if isinstance(self.event, Death) else None


class Moments(Sequence[Moment]):
    """One moment for each event, in order; the first, at tick 0, is an empty device.

    Attributes:
        ticks, allocated, requested, reserved: those of each moment.
    """

    def __init__(self) -> None:
        self.ticks = array("q", [0])
        self.allocated, self.requested, self.reserved = (array("Q", [0]) for _ in range(3))
        self._is_death = bytearray(1)
        self._storages: list[Storage | None] = [None]

    def add(self, event: Event, allocated: int, requested: int, reserved: int) -> None:
        """Append the moment after an event."""
        self.ticks.append(event.tick)
        self.allocated.append(allocated)
        self.requested.append(requested)
        self.reserved.append(reserved)
        self._is_death.append(isinstance(event, Death))
        self._storages.append(None if isinstance(event, CacheEmptied) else event.storage)

    def events(self, end: int | None = None) -> Iterator[Event]:
        """What led to each of the moments, of all or of the first `end`."""
        return filter(None, map(self._event, range(len(self))[:end]))

    def __len__(self) -> int:
        return len(self.ticks)

    @overload
    def __getitem__(self, index: int) -> Moment: ...
    @overload
    def __getitem__(self, index: slice) -> list[Moment]: ...
    def __getitem__(self, index: int | slice) -> Moment | list[Moment]:
        place = range(len(self))[index]
        return self._at(place) if isinstance(place, int) else list(map(self._at, place))

    def __iter__(self) -> Iterator[Moment]:
        return map(self._at, range(len(self)))

    def _at(self, i: int) -> Moment:
        figures = self.allocated[i], self.requested[i], self.reserved[i]
        return Moment(i, self.ticks[i], *figures, self._event(i))

    def _event(self, i: int) -> Event | None:
        storage = self._storages[i]
        if storage is None:
            return CacheEmptied(self.ticks[i]) if i else None
        return (Death if self._is_death[i] else Birth)(self.ticks[i], storage)


class StorageNumbers(MutableMapping[int, int]):
    """A number, such as an address, by a storage's id; those of scratch memory are negative."""

    def __init__(self) -> None:
        self._columns = array("q"), array("q")

    def __setitem__(self, storage: int, number: int) -> None:
        column, place = self._columns[storage < 0], max(storage, ~storage)
        if place >= len(column):
            column.extend([_NONE] * (place + 1 - len(column)))
        column[place] = number

    def __getitem__(self, storage: int) -> int:
        column, place = self._columns[storage < 0], max(storage, ~storage)
        if place >= len(column) or column[place] == _NONE:
            raise KeyError(storage)
        return column[place]

    def __delitem__(self, storage: int) -> None:
        self[storage] = _NONE

    def __iter__(self) -> Iterator[int]:
        known, scratch = self._columns
        yield from (each for each, number in enumerate(known) if number != _NONE)
        yield from (~each for each, number in enumerate(scratch) if number != _NONE)

    def __len__(self) -> int:
        return sum(1 for _ in self)


_NONE = -1
