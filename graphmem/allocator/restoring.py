"""Put an empty allocator into a recorded state."""

from __future__ import annotations

from collections.abc import Iterable

from graphmem.allocator.caching_allocator import CachingAllocator
from graphmem.allocator.pool import EVERYBODYS, Block, Pool, SegmentInfo
from graphmem.allocator.segment_info import lay_out, range_ends


def restore(allocator: CachingAllocator, segments: Iterable[SegmentInfo]) -> dict[int, Block]:
    """Restore recorded segments and their blocks.

    In which order segments were opened is not recorded; those at lower addresses come first.

    Returns:
        the blocks in use, by address.
    """
    if allocator.segments():
        raise ValueError("Only an empty allocator can be put into a recorded state.")
    in_use: dict[int, Block] = {}
    infos = sorted(segments, key=lambda info: info.address)
    for info, end in zip(infos, range_ends(infos), strict=True):
        pool = _pool_of(allocator, info)
        allocator.device.occupy(info.address, info.size)
        if info.is_expandable:
            head = allocator.enter_stretch(pool, info, end)
        else:
            head = allocator.enter_segment(pool, info.address, info.size, info.stream)
        for block in lay_out(head, info):
            allocator.enter_block(pool, block)
            if not block.is_free:
                in_use[block.address] = block
    return in_use


def _pool_of(allocator: CachingAllocator, info: SegmentInfo) -> Pool:
    if info.pool_id == EVERYBODYS:
        return allocator.small if info.is_small else allocator.large
    private = allocator.private.get(info.pool_id) or allocator.private.open(info.pool_id)
    return private.small if info.is_small else private.large
