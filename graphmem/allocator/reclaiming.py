"""Which cached blocks return to the driver when the limit or the card's capacity is near."""

from __future__ import annotations

from bisect import bisect_left

from graphmem.allocator.pool import Block, Pool


def long_unused(pool: Pool, wanted: int) -> list[Block]:
    """Choose whole segments, longest unused first (`garbage_collect_cached_blocks`).

    Args:
        pool: the large pool.
        wanted: bytes; the round that reaches them is completed.
    """
    found: list[Block] = []
    ages = {
        block: pool.searches - block.cached_at
        for block in pool.free_blocks()
        if not block.is_split and not block.segment.page_size
    }
    while wanted > 0 and ages:
        mean_age = sum(ages.values()) / len(ages)
        old = [block for block, age in ages.items() if age >= mean_age]
        for block in old:
            del ages[block]
            wanted -= block.size
        found += old
    return found


def too_large_to_split(pool: Pool, stream: int, size: int, limit: int) -> list[Block]:
    """Choose just enough blocks of at least `limit` bytes (`release_available_cached_blocks`).

    Args:
        pool: the pool of the request.
        stream: the stream of the request.
        size: its rounded size.
        limit: `max_split_size`.
    """
    wanted = max(size, limit)
    free = pool.free.get(stream, [])
    index = bisect_left(free, (wanted, 0, 0))
    if index < len(free):
        return [pool.block_at(free[index][-1])]
    found: list[Block] = []
    for block_size, _, address in reversed(free):
        if sum(block.size for block in found) >= wanted or block_size < limit:
            break
        found.append(pool.block_at(address))
    return found
