"""What Python's cycle collector freed on the card.

The collector runs after so many allocations of Python objects, some of them graphmem's own, so a
real process frees memory that only reference cycles hold at other moments.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphmem.graph import StepGraph, Storage


@dataclass(frozen=True, slots=True)
class Collection:
    """A run of the collector: it freed what died after tick `start`, up to tick `end`.

    Attributes:
        is_asked: whether the program asked for it, and for all generations: `gc.collect()`.
    """

    start: int
    end: int
    is_asked: bool


def collection_at(tick: int | None, found: Sequence[Collection]) -> Collection | None:
    """The collection that ended an owner at `tick`, or None.

    Args:
        tick: the tick; None for an owner that was never ended.
        found: the collections of a step graph, which are in order.
    """
    if tick is None:
        return None
    index = bisect_left(found, tick, key=lambda each: each.start) - 1
    return found[index] if index >= 0 and tick <= found[index].end else None


def freed_by_chance(graph: StepGraph) -> list[Storage]:
    """The storages of the card that a collection freed for which the program did not ask."""
    by_chance = [each for each in graph.collections if not each.is_asked]
    if not by_chance:
        return []
    on_card = (each for each in graph.storages if each.device == graph.device)
    return [each for each in on_card if collection_at(each.death, by_chance) is not None]
