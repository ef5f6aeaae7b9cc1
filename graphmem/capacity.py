"""Whether a step fits on the card: its allocations and frees, replayed with limited memory.

A step fits iff the runtime's caching allocator serves every request, if necessary by emptying its
cache. The memory of the context and NCCL is an estimate with bounds (graphmem/gpus/context.py,
nccl.py); the verdict is certain iff it is the same for their lower bounds with the most card memory
that a driver was seen to leave, and for their upper bounds with the least. cuDNN skips a
convolution's plan whose workspace cannot be allocated; which plan it then takes is unknown, so the
replay continues without a workspace, and the verdict is not certain.

Not covered: other processes on the card.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from graphmem.allocator import CachingAllocator, OutOfMemory
from graphmem.events import Birth, CacheEmptied, Event
from graphmem.graph import OwnerKind, Storage
from graphmem.kernel_program import CONVOLUTION_WORKSPACE
from graphmem.runtime import Runtime
from graphmem.simulate import Simulator, Timeline


@dataclass(frozen=True)
class RefusedStorage:
    """A failed request: its storage, its tick, and PyTorch's message."""

    tick: int
    storage: Storage
    error: OutOfMemory


@dataclass(frozen=True)
class CardReplay:
    """The outcome of replaying events.

    Attributes:
        timeline: up to the end, or to the failed request.
        cache_emptied: how often the driver refused memory and the cache was emptied.
        refused: the request that failed, or None.
        did_without: how many convolution workspaces could not be allocated.
    """

    timeline: Timeline
    cache_emptied: int = 0
    refused: RefusedStorage | None = None
    did_without: int = 0

    @property
    def reserved_bytes(self) -> int:
        """The highest reserved bytes."""
        return max(self.timeline.moments.reserved)

    @property
    def allocated_bytes(self) -> int:
        """The highest allocated bytes."""
        return self.timeline.peak()[0].allocated


@dataclass(frozen=True)
class Verdict:
    """Whether a step fits on a card.

    Attributes:
        replay: the replay on that card.
        is_certain: whether a card with less or more free memory gives the same verdict.
        capacity_bytes: the most that the allocator can reserve.
        margin_bytes: capacity left at the highest reserved bytes; if the step does not fit, minus
            the bytes above the capacity that it would reserve with unlimited memory.
    """

    replay: CardReplay
    is_certain: bool
    capacity_bytes: int
    margin_bytes: int

    @property
    def fits(self) -> bool:
        """Whether every request succeeds."""
        return self.replay.refused is None


def replay(found: Iterable[Event], allocator: CachingAllocator) -> CardReplay:
    """Apply events to an allocator until it runs out of memory."""
    simulator = Simulator(allocator)
    refused = None
    without: set[int] = set()
    for event in found:
        if not isinstance(event, CacheEmptied) and event.storage.id in without:
            continue
        try:
            simulator.apply(event)
        except OutOfMemory as error:
            assert isinstance(event, Birth)  # no other event requests memory
            if can_do_without(event.storage):
                without.add(event.storage.id)
                continue
            refused = RefusedStorage(event.tick, event.storage, error)
            break
    return CardReplay(simulator.finish(), allocator.num_alloc_retries, refused, len(without))


def can_do_without(storage: Storage) -> bool:
    """Whether cuDNN tries another plan (aten/src/ATen/native/cudnn/Conv_v8.cpp, `try_plans`)."""
    owner = storage.owned_as(OwnerKind.WORKSPACE)
    return owner is not None and owner.name == CONVOLUTION_WORKSPACE


class Replayable(Protocol):
    """What an allocator was asked for (`graphmem.online.tape`)."""

    def replay(self, allocator: CachingAllocator, moments: int | None = None) -> CardReplay:
        """Ask another one, until it runs out of memory or after so many moments."""


Course = Callable[[CachingAllocator], CardReplay]
"""Replays a step on an empty allocator, until it runs out of memory."""


def judge(course: Course, runtime: Runtime, unbounded: Timeline) -> Verdict:
    """Replay a step on the runtime's card.

    Args:
        course: the step.
        runtime: the card, the version of torch, the environment.
        unbounded: the same step with unlimited memory.
    """
    whole = CardReplay(unbounded)
    gpu, context = runtime.gpu, runtime.context
    most = gpu.memory_bytes + gpu.memory_surplus_bytes
    least = gpu.memory_bytes - gpu.memory_spread_bytes

    def on_card(memory_bytes: int, context_bytes: int) -> CardReplay:
        card = replace(runtime, gpu=replace(gpu, memory_bytes=memory_bytes))
        allocator = card.new_allocator(context_bytes=context_bytes)
        return whole if _never_full(allocator, whole.reserved_bytes) else course(allocator)

    result = on_card(gpu.memory_bytes, context.estimate_bytes)
    others = [
        on_card(most, context.least_bytes),
        on_card(least, context.most_bytes),
    ]
    fits = result.refused is None
    capacity = capacity_of(runtime.new_allocator())
    return Verdict(
        replay=result,
        is_certain=not result.did_without
        and all(fits == (other.refused is None) for other in others),
        capacity_bytes=capacity,
        margin_bytes=capacity - (result if fits else whole).reserved_bytes,
    )


def _never_full(allocator: CachingAllocator, reserved_bytes: int) -> bool:
    """Whether the driver never refuses memory, and the allocator never collects garbage."""
    collects = allocator.limit_bytes and allocator.settings.garbage_collection_threshold
    return not collects and reserved_bytes <= capacity_of(allocator)


def allowed_by(allocator: CachingAllocator) -> int | None:
    """What a memory fraction lets the process reserve, if that is less than the card has."""
    limit = allocator.limit_bytes
    return limit if limit == capacity_of(allocator) else None


def capacity_of(allocator: CachingAllocator) -> int:
    """The most that an allocator with limited memory can reserve."""
    bounds = (allocator.device.capacity_bytes, allocator.limit_bytes)
    return min(bound for bound in bounds if bound is not None)
