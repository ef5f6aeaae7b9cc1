"""Replay a rank's allocations through the caching allocator: the peak, and what is alive when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from graphmem.allocator import Block, CachingAllocator
from graphmem.graph import Category, OwnerKind, PhaseName
from graphmem.parallel.rank.allocations import Allocation
from graphmem.parallel.rank.rank import Rank, RankMoment

ROUNDING = "rounding"


@dataclass(frozen=True)
class RankTimeline:
    """The bytes that a rank's device holds over time.

    Attributes:
        peak: the most allocated bytes.
        reserved: the most reserved bytes.
        at: the moment of the peak.
        at_peak: bytes by category at the peak; they sum to `peak`.
        most: the most bytes of each category, at the peak or when a slot begins.
        after: allocated bytes at the end of each of the rank's slots.
    """

    peak: int
    reserved: int
    at: RankMoment
    at_peak: Mapping[str, int]
    most: Mapping[str, int]
    after: tuple[int, ...]


def replay(
    rank: Rank, allocations: Sequence[Allocation], allocator: CachingAllocator
) -> RankTimeline:
    """Allocate and free in the order of the schedule.

    Args:
        rank: the rank that allocates.
        allocations: in any order.
        allocator: an empty allocator.
    """
    events = _events(allocations)
    blocks: dict[int, Block] = {}
    peak, at, at_event = 0, (0, 0.0), -1
    reserved = 0
    after = [0] * len(rank.slots)
    for i, (moment, born, number) in enumerate(events):
        if born:
            each = allocations[number]
            blocks[number] = allocator.malloc(each.nbytes, each.stream)
        else:
            allocator.free(blocks.pop(number))
        stats = allocator.statistics
        reserved = max(reserved, stats.reserved_bytes.current)
        after[moment[0]] = stats.allocated_bytes.current
        if stats.allocated_bytes.current > peak:
            peak, at, at_event = stats.allocated_bytes.current, moment, i
    categories = _Categories(rank)
    at_peak = categories.sums([allocations[n] for n in _alive_at_birth(events, at_event)], at)
    rounding = peak - sum(at_peak.values())
    most = _most(rank, allocations, events, categories)
    for category, nbytes in at_peak.items():
        most[category] = max(most.get(category, 0), nbytes)
    return RankTimeline(
        peak, reserved, at, {**at_peak, ROUNDING: rounding}, most, tuple(_filled(after))
    )


def _filled(after: Sequence[int]) -> Iterator[int]:
    """Give a slot in which nothing happens the bytes of the previous one."""
    last = 0
    for nbytes in after:
        last = nbytes or last
        yield last


_Event = tuple[RankMoment, bool, int]


def _events(allocations: Sequence[Allocation]) -> list[_Event]:
    """Births and deaths in order; at the same moment, deaths come first."""
    found: list[_Event] = []
    for number, allocation in enumerate(allocations):
        if not allocation.nbytes:
            continue
        found.append((allocation.born, True, number))
        if allocation.dies is not None:
            found.append(
                (
                    max(allocation.dies, (allocation.born[0], allocation.born[1] + 1e-3)),
                    False,
                    number,
                )
            )
    return sorted(found, key=lambda event: (event[0], event[1]))


def _alive_at_birth(events: Sequence[_Event], index: int) -> list[int]:
    """The storages alive right after one of the births; none for -1."""
    if index < 0:
        return []
    (_, _, born), alive = next(islice(_with_alive(events), index, None))
    return [*alive, born]


def _with_alive(events: Sequence[_Event]) -> Iterator[tuple[_Event, dict[int, None]]]:
    """Each event, and the numbers of what was alive before it, in order of birth."""
    alive: dict[int, None] = {}
    for event in events:
        yield event, alive
        _, born, number = event
        if born:
            alive[number] = None
        else:
            del alive[number]


def _most(
    rank: Rank, allocations: Sequence[Allocation], events: Sequence[_Event], categories: _Categories
) -> dict[str, int]:
    most: dict[str, int] = {}
    slot = -1
    for (moment, _, _), alive in _with_alive(events):
        if moment[0] != slot:
            slot = moment[0]
            if rank.in_last_step(slot):
                sums = categories.sums(
                    [allocations[each] for each in alive], (slot, moment[1] - 0.5)
                )
                for category, nbytes in sums.items():
                    most[category] = max(most.get(category, 0), nbytes)
    return most


class _Categories:
    """The categories of allocations at a moment.

    A micro-batch that waits between its forward and its backward pass stays as its forward pass
    left it, whatever the rank does meanwhile. Gradients of later micro-batches are temporaries that
    are added to the first one's, unless each is reduced.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._ticks = [event.tick for event in rank.traced.events]
        layout = rank.layout
        self._reduces_each = layout.sharding.shares_gradients and layout.sharding_ranks > 1

    def sums(self, allocations: Iterable[Allocation], moment: RankMoment) -> dict[str, int]:
        found: dict[str, int] = {}
        for allocation in allocations:
            category = self._of(allocation, moment)
            found[category] = found.get(category, 0) + allocation.nbytes
        return found

    def _of(self, allocation: Allocation, moment: RankMoment) -> str:
        if allocation.category is not None:
            return str(allocation.category)
        assert allocation.storage is not None
        is_added = allocation.micro > 0 and not self._reduces_each
        if is_added and allocation.storage.owned_as(OwnerKind.GRADIENT):
            return str(Category.TEMPORARY)
        return str(allocation.storage.category_at(self._tick(self._place(allocation, moment))))

    def _place(self, allocation: Allocation, moment: RankMoment) -> float:
        rank = self._rank
        born = allocation.born[0]
        turn = rank.slots[born].turn
        if turn is None or born == moment[0]:
            return moment[1]
        back = rank.backward_of(born) if turn.phase is PhaseName.FORWARD else born
        if back == moment[0]:
            return moment[1]
        waits = back is not None and moment[0] < back
        return rank.end_of(born if waits or back is None else back) - 0.5

    def _tick(self, event: float) -> int:
        """The tick of an event; between two events, that of the earlier one."""
        whole = min(max(int(event), 0), len(self._ticks) - 1)
        return self._ticks[whole]
