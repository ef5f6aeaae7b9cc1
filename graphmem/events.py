"""Events of a device's memory: storages are born and die, caches are emptied."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from graphmem.graph import Storage


class Birth(NamedTuple):
    """A storage is allocated."""

    tick: int
    storage: Storage


class Death(NamedTuple):
    """A storage is freed."""

    tick: int
    storage: Storage


class CacheEmptied(NamedTuple):
    """The program releases unused memory, as by `torch.cuda.empty_cache()`."""

    tick: int


LifeEvent = Birth | Death
Event = LifeEvent | CacheEmptied


def alive_after(events: Iterable[Event]) -> dict[int, Storage]:
    """The storages that are alive after the last event, by id, in order of birth."""
    alive: dict[int, Storage] = {}
    for event in events:
        if isinstance(event, Birth):
            alive[event.storage.id] = event.storage
        elif isinstance(event, Death):
            del alive[event.storage.id]
    return alive
