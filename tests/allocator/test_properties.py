"""Invariants of the allocator after any sequence of requests, and a naive reimplementation."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from graphmem.allocator import (
    Block,
    CachingAllocator,
    Device,
    OutOfMemory,
    parse_settings,
    restore,
)
from tests.support.sizes import MIB

SIZES = st.one_of(
    st.integers(1, 5000),
    st.integers(MIB - 600, MIB + 600),
    st.integers(1, 40).map(lambda count: count * MIB // 2),
    st.integers(10 * MIB - 600, 12 * MIB + 600),
)
# An allocation of a size on a stream, or a free of the n-th live block.
STEPS = st.lists(
    st.one_of(st.tuples(SIZES, st.integers(0, 2)), st.integers(0, 50)), min_size=1, max_size=80
)
CONFIGURATIONS = st.sampled_from(
    [
        "",
        "expandable_segments:True",
        "max_split_size_mb:20",
        "roundup_power2_divisions:[1:2,4:8,>:4]",
        "garbage_collection_threshold:0.5,per_process_memory_fraction:0.9",
        "large_segment_size_mb:12",
    ]
)
Steps = list[tuple[int, int] | int]


def run(allocator: CachingAllocator, steps: Steps) -> tuple[list[Block], list[int]]:
    """Run the steps; return the live blocks and the address of each allocation."""
    live: list[Block] = []
    addresses = []
    for step in steps:
        if isinstance(step, tuple):
            try:
                live.append(allocator.malloc(*step))
            except OutOfMemory:
                addresses.append(-1)
            else:
                addresses.append(live[-1].address)
        elif live:
            allocator.free(live.pop(step % len(live)))
    return live, addresses


@given(STEPS, CONFIGURATIONS)
def test_live_blocks_never_overlap(steps: Steps, conf: str) -> None:
    live, _ = run(CachingAllocator(parse_settings(conf)), steps)
    live.sort(key=lambda block: block.address)

    assert all(low.address + low.size <= high.address for low, high in pairwise(live))
    assert all(block.requested <= block.size for block in live)


@given(STEPS, CONFIGURATIONS)
def test_segments_consist_of_their_blocks(steps: Steps, conf: str) -> None:
    """Blocks are adjacent, no two free ones are neighbours, and they add up to the statistics."""
    allocator = CachingAllocator(parse_settings(conf), capacity_bytes=256 * MIB)
    live, _ = run(allocator, steps)
    segments = allocator.segments()
    for segment in segments:
        at = segment.address
        for block in segment.blocks:
            assert at == block.address
            at += block.size
        assert segment.address + segment.size == at
        states = [block.state for block in segment.blocks]
        assert all(state != "inactive" or state != other for state, other in pairwise(states))

    free_in_split = sum(
        block.size
        for segment in segments
        if len(segment.blocks) > 1 and not segment.is_expandable
        for block in segment.blocks
        if block.state == "inactive"
    )
    statistics = allocator.statistics
    assert sum(segment.size for segment in segments) == statistics.reserved_bytes.current
    assert sum(block.size for block in live) == statistics.allocated_bytes.current
    assert sum(block.requested for block in live) == statistics.requested_bytes.current
    assert free_in_split == statistics.inactive_split_bytes.current


@given(STEPS, CONFIGURATIONS)
def test_allocated_is_at_most_reserved_at_most_capacity(steps: Steps, conf: str) -> None:
    capacity = 64 * MIB
    allocator = CachingAllocator(parse_settings(conf), capacity_bytes=capacity)
    for step in range(len(steps)):
        run(allocator, steps[step : step + 1])
        figures = allocator.statistics
        assert figures.requested_bytes.current <= figures.allocated_bytes.current
        assert figures.allocated_bytes.current <= figures.reserved_bytes.current <= capacity
        assert figures.reserved_bytes.current == allocator.device.reserved_bytes


@given(STEPS, CONFIGURATIONS)
def test_freeing_everything_leaves_nothing(steps: Steps, conf: str) -> None:
    allocator = CachingAllocator(parse_settings(conf))
    live, _ = run(allocator, steps)
    for block in live:
        allocator.free(block)
    for name, stat in allocator.statistics.stats().items():
        assert name in ("segment", "reserved_bytes") or stat.current == 0, name

    allocator.empty_cache()
    assert allocator.segments() == ()
    assert all(stat.current == 0 for stat in allocator.statistics.stats().values())


@given(STEPS, CONFIGURATIONS)
def test_the_pools_add_up(steps: Steps, conf: str) -> None:
    allocator = CachingAllocator(parse_settings(conf))
    run(allocator, steps)
    small, large = allocator.small.statistics.stats(), allocator.large.statistics.stats()
    for name, stat in allocator.statistics.stats().items():
        assert stat.current == small[name].current + large[name].current, name
        assert stat.freed == small[name].freed + large[name].freed, name
        assert stat.peak <= small[name].peak + large[name].peak, name


@given(STEPS, CONFIGURATIONS)
def test_the_same_steps_lead_to_the_same_addresses(steps: Steps, conf: str) -> None:
    first, second = (CachingAllocator(parse_settings(conf)) for _ in range(2))

    assert run(first, steps)[1] == run(second, steps)[1]
    assert first.memory_stats() == second.memory_stats()


@given(STEPS, CONFIGURATIONS, STEPS)
def test_a_restored_allocator_behaves_the_same(steps: Steps, conf: str, more: Steps) -> None:
    first, second = (CachingAllocator(parse_settings(conf)) for _ in range(2))
    run(first, steps)
    in_use = restore(second, first.segments())
    assert first.segments() == second.segments()

    for step in [step for step in more if isinstance(step, tuple)]:
        assert first.malloc(*step).size == second.malloc(*step).size
    assert first.statistics.reserved_bytes.current == second.statistics.reserved_bytes.current
    assert len(in_use) <= len(steps)


@dataclass
class NaiveAllocator:
    """The default mode's rules on plain lists: `[address, size, in use]` for each block."""

    segments: list[tuple[int, bool, list[list[int]]]] = field(default_factory=list)
    reserved: int = 0

    def malloc(self, requested: int, stream: int) -> int:
        size = -(-requested // 512) * 512
        is_small = size <= MIB
        fits = [
            (block[1], block[0], blocks)
            for owner, small, blocks in self.segments
            if owner == stream and small == is_small
            for block in blocks
            if not block[2] and block[1] >= size
        ]
        if not fits:
            opened = 2 * MIB if is_small else 20 * MIB
            if size >= 10 * MIB:
                opened = -(-size // (2 * MIB)) * 2 * MIB
            blocks = [[self.reserved, opened, 0]]
            self.segments.append((stream, is_small, blocks))
            fits = [(opened, self.reserved, blocks)]
            self.reserved += opened
        found, address, blocks = min(fits, key=lambda fit: fit[:2])
        index = next(i for i, block in enumerate(blocks) if block[0] == address)
        if found - size > (511 if is_small else MIB):
            blocks.insert(index + 1, [address + size, found - size, 0])
            blocks[index][1] = size
        blocks[index][2] = 1
        return address

    def free(self, address: int) -> None:
        for _, _, blocks in self.segments:
            for block in blocks:
                if block[0] == address and block[2]:
                    block[2] = 0
            for index in range(len(blocks) - 1, 0, -1):
                if not blocks[index][2] and not blocks[index - 1][2]:
                    blocks[index - 1][1] += blocks.pop(index)[1]

    @property
    def allocated(self) -> int:
        return sum(b[1] for _, _, blocks in self.segments for b in blocks if b[2])


@given(STEPS)
@settings(max_examples=200)
def test_the_naive_twin_agrees(steps: Steps) -> None:
    """Addresses, allocated and reserved bytes after each step; the twin's segments ascend."""
    allocator, naive = CachingAllocator(device=Device(driver="wddm")), NaiveAllocator()
    live: list[tuple[Block, int]] = []
    for step in steps:
        if isinstance(step, tuple):
            live.append((allocator.malloc(*step), naive.malloc(*step)))
            block, address = live[-1]
            start = live[0][0].address - live[0][1]
            assert block.address - address == start
        elif live:
            block, address = live.pop(step % len(live))
            allocator.free(block)
            naive.free(address)
        assert naive.allocated == allocator.statistics.allocated_bytes.current
        assert naive.reserved == allocator.statistics.reserved_bytes.current
