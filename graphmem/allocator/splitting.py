"""Whether a request gets a whole block, or the low part of it."""

from __future__ import annotations

from graphmem.allocator.pool import Block
from graphmem.allocator.settings import MIN_BLOCK, SMALL_LIMIT, AllocatorSettings


def should_split(block: Block, size: int, settings: AllocatorSettings) -> bool:
    """Whether what a request does not need of a block is large enough to split off."""
    pool, rest = block.segment.pool, block.size - size
    if not pool.may_split:
        return False
    if pool.is_small or settings.expandable_segments:
        return rest >= MIN_BLOCK
    oversize = settings.max_split_size
    return rest > SMALL_LIMIT and (oversize is None or size < oversize)
