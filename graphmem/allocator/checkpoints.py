"""The state of a private pool, noted and set again.

Note [Checkpointing PrivatePoolState] in c10/cuda/CUDACachingAllocator.cpp. A replay of a CUDA graph
allocates nothing, so before another graph is recorded behind it, the pool gets back the state in
which the recording left it.

Assumption: the segments whose first block is in use come by address. In PyTorch they come in the
order of a hash set of pointers, on which peaks may depend that are reached while a state is set.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphmem.allocator.caching_allocator import CachingAllocator
from graphmem.allocator.pool import Block, PoolId, Segment
from graphmem.allocator.private_pools import PrivatePool
from graphmem.torch_releases.differences import RESTORED_POOLS_MAY_HAVE_GROWN


@dataclass(frozen=True, slots=True)
class BlockState:
    """One block then (`BlockState`)."""

    address: int
    size: int
    allocated: bool


@dataclass(frozen=True, slots=True)
class PoolState:
    """A private pool then (`PrivatePoolState`): its id, and the blocks of each segment."""

    pool_id: PoolId
    segments: tuple[tuple[BlockState, ...], ...]


@dataclass(frozen=True, slots=True)
class Restored:
    """What setting a state did (`RestoreResult`).

    Attributes:
        freed: the blocks that were in use, by address.
        created: those that are now; an address may be in both.
    """

    freed: dict[int, Block]
    created: dict[int, Block]


def pool_state(allocator: CachingAllocator, pool_id: PoolId) -> PoolState:
    """Note the state of a private pool (`getCheckpointState`).

    Raises:
        RuntimeError: as in C++.
    """
    segments = _segments(allocator, _pool(allocator, pool_id, "Could not find pool of id"))
    return PoolState(pool_id, tuple(tuple(map(_noted, each.blocks())) for each in segments))


def set_pool_state(allocator: CachingAllocator, state: PoolState) -> Restored:
    """Give a private pool a noted state again (`setCheckpointPoolState`).

    Raises:
        RuntimeError: as in C++.
    """
    pool = _pool(allocator, state.pool_id, "Could not find private pool id")
    restored = Restored({}, {})
    for segment in _segments(allocator, pool):
        for block in [block for block in segment.blocks() if block.allocated]:
            restored.freed[block.address] = block
            allocator.free(block)
    segments = {segment.address: segment for segment in _segments(allocator, pool)}
    for blocks in state.segments:
        address = blocks[0].address
        if address not in segments or not segments[address].head.is_free:
            raise RuntimeError(f" could not find {address:#x}")
        _set_segment(allocator, segments[address], blocks)
        restored.created.update(_in_use(segments[address]))
    return restored


def _pool(allocator: CachingAllocator, pool_id: PoolId, not_there: str) -> PrivatePool:
    pool = allocator.private.get(pool_id)
    if pool is None:
        raise RuntimeError(not_there)
    return pool


def _segments(allocator: CachingAllocator, pool: PrivatePool) -> list[Segment]:
    """A pool's segments, free ones last (`get_private_pool_head_blocks`)."""
    found = [
        each
        for each in allocator.by_address.values()
        if each.pool in (pool.small, pool.large) and each.head.mapped
    ]
    return sorted(found, key=_rank)


def _rank(segment: Segment) -> tuple[int, ...]:
    """In use: by address. Free: the small pool first, and in search order."""
    head = segment.head
    if not head.is_free:
        return 0, head.address
    return 1, not segment.pool.is_small, head.size, head.number, head.address


def _noted(block: Block) -> BlockState:
    if block.pending:
        raise RuntimeError("Events should have synchronized when checkpointing block")
    return BlockState(block.address, block.size, block.allocated)


def _set_segment(
    allocator: CachingAllocator, segment: Segment, states: tuple[BlockState, ...]
) -> None:
    """Hand out every block, then take back those that were free (`setSegmentStateToCheckpoint`)."""
    block: Block | None = segment.head
    for state in states[:-1] if segment.page_size else states:
        assert block is not None
        segment.pool.remove(block)
        allocator.hand_out(block, state.size, state.size, cut=block.size > state.size)
        block = block.next
    if segment.page_size:
        _check_unmapped_rest(allocator, block)
    were_free = {state.address for state in states if not state.allocated}
    for each in list(segment.blocks()):
        if each.allocated and each.address in were_free:
            allocator.free(each)


def _check_unmapped_rest(allocator: CachingAllocator, block: Block | None) -> None:
    """What follows in an expandable segment has no memory yet, unless the segment has grown."""
    if RESTORED_POOLS_MAY_HAVE_GROWN.holds_in(allocator.release):
        return
    if block is None or block.next is not None:
        raise RuntimeError(
            "Expected curr_block->next == nullptr to be true, but got false.  (Could this error "
            "message be improved?  If so, please report an enhancement request to PyTorch.)"
        )


def _in_use(segment: Segment) -> dict[int, Block]:
    return {block.address: block for block in segment.blocks() if block.allocated}
