"""Replay births and deaths of storages through the caching allocator: the timeline of a step."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from itertools import count
from operator import itemgetter
from types import MappingProxyType
from typing import Protocol

from graphmem.allocator import Block, CachingAllocator, SegmentInfo
from graphmem.events import Birth, CacheEmptied, Death, Event, LifeEvent, alive_after
from graphmem.graph import Op, StepGraph, Storage
from graphmem.kernel_program import Output, Program, Take, storages_of, tick_of
from graphmem.moments import Moment, Moments, StorageNumbers

_TICK = itemgetter(0)
_NO_PROGRAMS: Mapping[int, Program] = MappingProxyType({})


@dataclass(frozen=True)
class Timeline:
    """The bytes of a device over the ticks of a trace.

    Attributes:
        moments: one for each allocation, free and emptying of the cache, in order.
        block_bytes: by storage id, the bytes of its block.
        addresses: by storage id, the address of its block.
        segments: the reserved segments at the end, with their blocks.
        given_back: by index of the moments at which the program emptied the cache, what was
            returned to the driver: `segment_free` or `segment_unmap`, address, bytes.
    """

    moments: Moments = field(default_factory=Moments)
    block_bytes: MutableMapping[int, int] = field(default_factory=StorageNumbers)
    addresses: MutableMapping[int, int] = field(default_factory=StorageNumbers)
    segments: tuple[SegmentInfo, ...] = ()
    given_back: dict[int, list[tuple[str, int, int]]] = field(default_factory=dict)

    def note(self, event: Event, block: Block | None, allocator: CachingAllocator) -> None:
        """Add the moment after an event, and the block that it gave a storage."""
        if isinstance(event, Birth) and block is not None:
            self.block_bytes[event.storage.id] = block.size
            self.addresses[event.storage.id] = block.address
        stats = allocator.statistics
        self.moments.add(
            event,
            stats.allocated_bytes.current,
            stats.requested_bytes.current,
            stats.reserved_bytes.current,
        )

    def at(self, tick: int) -> Moment:
        """The moment at the end of `tick`."""
        return self.moments[self.index_at(tick)]

    def peak(self, start: int = 0, end: int | None = None) -> tuple[Moment, Storage | None]:
        """The first moment with the most allocated bytes from tick `start` to tick `end`.

        Returns:
            The moment, and the storage whose birth caused it; None if the range begins at its peak.
        """
        first = self.index_at(start)
        last = len(self.moments) - 1 if end is None else self.index_at(end)
        moment = self.moments[max(range(first, last + 1), key=self.moments.allocated.__getitem__)]
        return moment, moment.born

    def alive_at(self, moment: Moment) -> list[Storage]:
        """The storages that the device held at one of `moments`, in order of allocation."""
        return list(alive_after(self.moments.events(moment.index + 1)).values())

    def index_at(self, tick: int) -> int:
        """The index of the last moment at or before `tick`; -1 if there is none."""
        return bisect_right(self.moments.ticks, tick) - 1


class Memory(Protocol):
    """Allocates and frees blocks."""

    def malloc(self, requested_bytes: int) -> Block:
        """Allocate a block."""

    def free(self, block: Block) -> None:
        """Free a block."""

    def empty_cache(self) -> None:
        """Return unused memory to the driver."""


class Simulator:
    """Sends the births and deaths of storages to an allocator, and records what the device holds.

    Attributes:
        allocator: the device's allocator.
        timeline: the record so far.
    """

    def __init__(
        self,
        allocator: CachingAllocator,
        memory: Memory | None = None,
        on_moment: Callable[[Event, Block | None], None] | None = None,
    ) -> None:
        """Start with an empty device.

        Args:
            allocator: the device's allocator.
            memory: a proxy for the allocator that sees each call; by default the allocator itself.
            on_moment: told of each event, and of the block that it gave a storage.
        """
        self.allocator = allocator
        self._memory = memory or allocator
        self.timeline = Timeline()
        self._alive: dict[int, tuple[Storage, Block]] = {}
        self._on_moment = on_moment

    def apply(self, event: Event) -> None:
        """Allocate a storage, free one, or empty the cache.

        Raises:
            OutOfMemory: the device is full; nothing is recorded (`memory` may raise another error).
        """
        if isinstance(event, Birth):
            self.take(event, self._memory.malloc(event.storage.nbytes))
            return
        if isinstance(event, Death):
            _, block = self._alive.pop(event.storage.id)
            self._memory.free(block)
        else:
            self._empty_cache()
        self._note(event)

    def take(self, event: Birth, block: Block) -> None:
        """Note that a storage owns a block that was in use without it."""
        self._alive[event.storage.id] = event.storage, block
        self._note(event, block)

    def lose(self, event: Death) -> None:
        """Note that a storage's block was freed without it."""
        del self._alive[event.storage.id]
        self._note(event)

    def exchange(self, storage: Storage, block: Block) -> None:
        """Note that a storage's block was freed and allocated again, at its address."""
        self._alive[storage.id] = storage, block

    def _empty_cache(self) -> None:
        given_back: list[tuple[str, int, int]] = []
        listener = self.allocator.on_event
        self.allocator.on_event = lambda *event: given_back.append(event[:3])
        try:
            self._memory.empty_cache()
        finally:
            self.allocator.on_event = listener
        self.timeline.given_back[len(self.timeline.moments)] = given_back

    def _note(self, event: Event, block: Block | None = None) -> None:
        self.timeline.note(event, block, self.allocator)
        if self._on_moment is not None:
            self._on_moment(event, block)

    def block_of(self, storage: Storage) -> Block | None:
        """The current block of a storage, or None."""
        held = self._alive.get(storage.id)
        return None if held is None else held[1]

    def alive(self) -> list[tuple[Storage, Block]]:
        """The storages that the device holds, with their blocks, in order of allocation."""
        return list(self._alive.values())

    def finish(self) -> Timeline:
        """The timeline, with the current segments."""
        return replace(self.timeline, segments=self.allocator.segments())


def simulate(
    graph: StepGraph,
    programs: Mapping[int, Program] = _NO_PROGRAMS,
    allocator: CachingAllocator | None = None,
) -> Timeline:
    """Replay a step graph's storages, and the scratch memory of kernels.

    Args:
        graph: the step graph; storages off its device are left out.
        programs: kernel programs by the operation's index, from the pass `kernel_memory`.
        allocator: an empty one; by default with PyTorch's settings and unlimited memory.

    Raises:
        OutOfMemory: the allocator's device is too small.
    """
    simulator = Simulator(allocator or CachingAllocator())
    for event in all_events(graph, programs):
        simulator.apply(event)
    return simulator.finish()


def segments_after(found: Iterable[Event], allocator: CachingAllocator) -> tuple[SegmentInfo, ...]:
    """An allocator's segments after these events."""
    blocks: dict[int, Block] = {}
    for event in found:
        if isinstance(event, Birth):
            blocks[event.storage.id] = allocator.malloc(event.storage.nbytes)
        elif isinstance(event, Death):
            allocator.free(blocks.pop(event.storage.id))
        else:
            allocator.empty_cache()
    return allocator.segments()


def all_events(graph: StepGraph, programs: Mapping[int, Program] = _NO_PROGRAMS) -> list[Event]:
    """The events that `simulate` replays, in order; each makes one moment of the timeline."""
    return sorted([*life_events(graph, programs), *map(CacheEmptied, graph.emptied)], key=_TICK)


def life_events(
    graph: StepGraph, programs: Mapping[int, Program] = _NO_PROGRAMS
) -> list[LifeEvent]:
    """The births and deaths of storages, in order.

    An operation with a program allocates its outputs in the program's order, all at one tick; no
    other event falls on that tick, so sorting by tick keeps a program's steps together.
    """
    return life_events_of(graph.storages, graph, programs, count(len(graph.storages)))


def life_events_of(
    storages: Iterable[Storage],
    graph: StepGraph,
    programs: Mapping[int, Program],
    numbers: Iterator[int],
) -> list[LifeEvent]:
    """The births and deaths of some storages, and the events of some operations' programs.

    Args:
        storages: storages of the graph; those that a program allocates are born by it.
        graph: the step graph.
        programs: kernel programs by the operation's index.
        numbers: ids for the storages of scratch memory.
    """
    found = [
        event
        for index, program in programs.items()
        for event in _steps(graph.ops[index], program, graph, numbers)
    ]
    in_programs = {born for index in programs for born in graph.ops[index].births}
    for storage in storages:
        if not _counts(storage, graph):
            continue
        if storage.id not in in_programs:
            found.append(Birth(storage.birth, storage))
        death = storage.death
        if death is not None:
            found.append(Death(death, storage))
    return sorted(found, key=_TICK)


def _steps(
    op: Op, program: Program, graph: StepGraph, numbers: Iterator[int]
) -> Iterator[LifeEvent]:
    scratch = storages_of(op, program, graph, numbers)
    tick = tick_of(op, graph)
    for step in program:
        if isinstance(step, Output):
            storage = graph.storages[op.births[step.birth]]
            if _counts(storage, graph):
                yield Birth(tick, storage)
        elif step.scratch in scratch:
            yield (Birth if isinstance(step, Take) else Death)(tick, scratch[step.scratch])


def _counts(storage: Storage, graph: StepGraph) -> bool:
    return storage.device == graph.device and storage.nbytes > 0
