"""Replay births and deaths of storages through the caching allocator: the timeline of a step."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from graphmem.allocator import AllocatorSettings, CachingAllocator, SegmentInfo
from graphmem.graph import StepGraph, Storage


@dataclass(frozen=True)
class Moment:
    """What the device held after one allocation or free, in bytes."""

    tick: int
    allocated: int
    requested: int
    reserved: int


@dataclass(frozen=True)
class Timeline:
    """The bytes of a device over the ticks of a trace.

    Attributes:
        moments: one for each allocation and free, in order; the first, at tick 0, is empty.
        block_bytes: for each storage, by id, the bytes of the block that it got.
        births: for each moment, the storage that was born, or None.
        deaths: for each moment, the storage that died, or None.
        addresses: for each storage, by id, where its block begins.
        segments: what is reserved at the end, and what it holds.
    """

    moments: list[Moment]
    block_bytes: dict[int, int]
    births: list[Storage | None]
    deaths: list[Storage | None] = field(default_factory=list)
    addresses: dict[int, int] = field(default_factory=dict)
    segments: tuple[SegmentInfo, ...] = ()

    def at(self, tick: int) -> Moment:
        """What the device held when `tick` was over."""
        return self.moments[self._index_at(tick)]

    def peak(self, start: int = 0, end: int | None = None) -> tuple[Moment, Storage | None]:
        """The first moment of the most allocated bytes from tick `start` to tick `end`.

        Returns:
            The moment, and the storage whose birth made it; None where the stretch begins at its
            peak.
        """
        first = self._index_at(start)
        last = len(self.moments) - 1 if end is None else self._index_at(end)
        index = max(range(first, last + 1), key=lambda i: (self.moments[i].allocated, -i))
        return self.moments[index], self.births[index]

    def _index_at(self, tick: int) -> int:
        return bisect_right(self.moments, tick, key=lambda moment: moment.tick) - 1


def simulate(
    graph: StepGraph,
    workspaces: Iterable[Storage] = (),
    settings: AllocatorSettings | None = None,
) -> Timeline:
    """Replay a step graph's storages, and kernels' workspaces beside them.

    Storages off the graph's device are left out. Of several changes at one tick, the graph's own
    come first: a kernel takes its workspace after its operation's outputs.
    """
    allocator = CachingAllocator(settings)
    stats = allocator.statistics
    blocks = {}
    timeline = Timeline([Moment(0, 0, 0, 0)], {}, [None], [None])
    for tick, born, storage in changes(graph, workspaces):
        if born:
            block = blocks[storage.id] = allocator.malloc(storage.nbytes)
            timeline.block_bytes[storage.id] = block.size
            timeline.addresses[storage.id] = block.address
        else:
            allocator.free(blocks.pop(storage.id))
        timeline.births.append(storage if born else None)
        timeline.deaths.append(None if born else storage)
        timeline.moments.append(
            Moment(
                tick,
                stats.allocated_bytes.current,
                stats.requested_bytes.current,
                stats.reserved_bytes.current,
            )
        )
    return replace(timeline, segments=allocator.segments())


def changes(
    graph: StepGraph, workspaces: Iterable[Storage] = ()
) -> list[tuple[int, bool, Storage]]:
    """What `simulate` replays, in its order: a tick, whether the storage is born, the storage."""
    found = []
    for storage in (*graph.storages, *workspaces):
        if storage.device != graph.device or not storage.nbytes:
            continue
        found.append((storage.birth, True, storage))
        death = storage.death
        if death is not None:
            found.append((death, False, storage))
    return sorted(found, key=lambda change: change[0])
