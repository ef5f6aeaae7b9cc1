"""The states of private pools, with figures derived by arithmetic.

Random cases are compared with PyTorch's own allocator: `test_real_allocator.py`, modes
`checkpoints*`.
"""

from __future__ import annotations

import pytest

from graphmem.allocator import Block, CachingAllocator, PoolId, parse_settings
from graphmem.allocator.checkpoints import PoolState, pool_state, set_pool_state
from graphmem.torch_releases.differences import Release
from tests.support.sizes import KIB, MIB

POOL: PoolId = (0, 1)


class Graph:
    """An allocator all of whose requests go to one pool, as while a graph is recorded."""

    def __init__(self, conf: str = "", release: Release = (2, 13)) -> None:
        self.allocator = CachingAllocator(parse_settings(conf, release), release=release)
        self.allocator.private.begin(POOL, lambda stream: True)

    def takes(self, *sizes: int) -> list[Block]:
        return [self.allocator.malloc(size) for size in sizes]

    def frees(self, *blocks: Block) -> None:
        for block in blocks:
            self.allocator.free(block)

    def state(self) -> PoolState:
        return pool_state(self.allocator, POOL)

    def figures(self) -> tuple[int, int, int]:
        """Bytes allocated, requested and in free parts of segments."""
        stats = self.allocator.statistics
        of = stats.allocated_bytes, stats.requested_bytes, stats.inactive_split_bytes
        return of[0].current, of[1].current, of[2].current


def test_what_was_in_use_is_again_at_its_addresses() -> None:
    """Of 3, 4 and 5 MiB in a segment of 20 the middle one was free, and 8 at the end."""
    graph = Graph()
    low, middle, high = graph.takes(3 * MIB, 4 * MIB, 5 * MIB)
    graph.frees(middle)
    noted = graph.state()
    addresses = low.address, high.address
    graph.frees(low, high)
    other = graph.takes(10 * MIB)[0]
    restored = set_pool_state(graph.allocator, noted)

    assert noted == graph.state()
    assert addresses == tuple(restored.created)
    assert [other.address] == list(restored.freed)
    assert graph.figures() == (8 * MIB, 8 * MIB, 12 * MIB)
    assert graph.takes(4 * MIB)[0].address == addresses[0] + 3 * MIB


def test_requested_bytes_become_those_of_the_blocks() -> None:
    """`alloc_found_block(params, block_state.size, …)`: 1000 bytes are in a block of 1 KiB."""
    graph = Graph()
    graph.takes(1000)
    noted = graph.state()
    before = graph.figures()
    set_pool_state(graph.allocator, noted)

    assert before == (KIB, 1000, 2 * MIB - KIB)
    assert graph.figures() == (KIB, KIB, 2 * MIB - KIB)


def test_every_block_of_a_segment_is_handed_out_on_the_way() -> None:
    """So `max_memory_allocated` counts the whole segment of 20 MiB; two blocks are in use then.

    Two blocks are allocated twice, and the free rest once.
    """
    graph = Graph()
    graph.takes(2 * MIB, 3 * MIB)
    set_pool_state(graph.allocator, graph.state())
    allocation = graph.allocator.statistics.allocation

    assert graph.allocator.statistics.allocated_bytes.peak == 20 * MIB
    assert (allocation.current, allocation.peak) == (2, 3)
    assert (allocation.allocated, allocation.freed) == (2 + 3, 2 + 1)


def test_segments_that_came_later_stay_and_are_free() -> None:
    graph = Graph()
    graph.takes(12 * MIB)
    noted = graph.state()
    graph.takes(16 * MIB)
    set_pool_state(graph.allocator, noted)
    first, second = graph.allocator.segments()

    assert (first.size, second.size) == (12 * MIB, 16 * MIB)
    assert [first.blocks[0].state, second.blocks[0].state] == ["active_allocated", "inactive"]


def test_expandable_pools_may_have_grown_since_2_11() -> None:
    """20 MiB were mapped when 16 were in use; then 20 more were."""
    noted = {}
    for release in ((2, 10), (2, 11)):
        graph = Graph("expandable_segments:True", release)
        graph.takes(16 * MIB)
        noted[release] = graph, graph.state()
        graph.takes(16 * MIB)

    graph, state = noted[2, 10]
    with pytest.raises(RuntimeError, match="Expected curr_block->next == nullptr to be true"):
        set_pool_state(graph.allocator, state)
    graph, state = noted[2, 11]
    set_pool_state(graph.allocator, state)
    assert graph.figures()[0] == 16 * MIB
    assert graph.allocator.statistics.reserved_bytes.current == 40 * MIB


def test_a_pool_must_exist() -> None:
    allocator = CachingAllocator()
    with pytest.raises(RuntimeError, match="Could not find pool of id"):
        pool_state(allocator, POOL)
    with pytest.raises(RuntimeError, match="Could not find private pool id"):
        set_pool_state(allocator, PoolState(POOL, ()))


def test_its_segments_must_exist() -> None:
    graph = Graph()
    graph.takes(2 * MIB)

    with pytest.raises(RuntimeError, match=" could not find 0x"):
        set_pool_state(Graph().allocator, graph.state())
