"""The rules of the caching allocator, one by one, with figures derived by arithmetic."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from graphmem.allocator import (
    AllocatorSettings,
    CachingAllocator,
    Device,
    OutOfMemory,
    parse_settings,
    restore,
)
from graphmem.allocator.out_of_memory import format_size
from graphmem.errors import InputError
from graphmem.torch_releases import installed_release
from tests.support.sizes import KIB, MIB

SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB


def allocated(allocator: CachingAllocator) -> int:
    return allocator.statistics.allocated_bytes.current


def reserved(allocator: CachingAllocator) -> int:
    return allocator.statistics.reserved_bytes.current


@pytest.mark.parametrize(
    ("requested", "size"),
    [(1, 512), (512, 512), (513, 1024), (1000 * 4, 4096), (5120, 5120)],
)
def test_sizes_are_rounded_to_512(requested: int, size: int) -> None:
    allocator = CachingAllocator()

    assert size == allocator.malloc(requested).size
    assert size == allocated(allocator)
    assert requested == allocator.statistics.requested_bytes.current


def test_zero_bytes_allocate_nothing() -> None:
    allocator = CachingAllocator()
    block = allocator.malloc(0)
    allocator.free(block)

    assert (block.size, block.address) == (0, 0)
    assert (allocated(allocator), reserved(allocator)) == (0, 0)
    assert allocator.statistics.allocation.allocated == 0


def test_negative_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="-1 bytes"):
        CachingAllocator().malloc(-1)


@pytest.mark.parametrize(
    ("requested", "segment"),
    [
        (512, SMALL_SEGMENT),
        (MIB, SMALL_SEGMENT),
        (MIB + 1, LARGE_SEGMENT),
        (10 * MIB - 512, LARGE_SEGMENT),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB),
        (33_554_432, 32 * MIB),
    ],
)
def test_segment_sizes(requested: int, segment: int) -> None:
    """PyTorch's own test_cuda.py states four of these for CUDA graph pools."""
    allocator = CachingAllocator()
    allocator.malloc(requested)

    assert segment == reserved(allocator)


def test_a_tail_of_up_to_one_mebibyte_stays_with_its_block() -> None:
    """11 MiB in a segment of 12: the 1 MiB over is not more than 1 MiB, so it is not cut off."""
    allocator = CachingAllocator()
    block = allocator.malloc(11 * MIB)

    assert 12 * MIB == block.size == allocated(allocator) == 12_582_912
    assert allocator.statistics.requested_bytes.current == 11 * MIB


def test_a_tail_of_more_than_one_mebibyte_is_cut_off() -> None:
    allocator = CachingAllocator()
    block = allocator.malloc(11 * MIB - 512)

    assert block.size == 11 * MIB - 512
    assert reserved(allocator) == 12 * MIB
    assert allocator.statistics.inactive_split_bytes.current == MIB + 512


def test_the_rest_of_a_segment_serves_the_next_request_whole() -> None:
    """5 MiB leave 15 of 20; 14.5 MiB take them all, as the other 0.5 is too little to cut off."""
    allocator = CachingAllocator()
    allocator.malloc(5 * MIB)
    second = allocator.malloc(29 * MIB // 2)

    assert second.size == 15 * MIB
    assert LARGE_SEGMENT == allocated(allocator) == reserved(allocator)
    assert allocator.statistics.inactive_split_bytes.current == 0


def test_small_blocks_are_cut_exactly() -> None:
    allocator = CachingAllocator()
    allocator.malloc(MIB)
    allocator.malloc(MIB - 512)
    last = allocator.malloc(1)

    assert last.size == 512
    assert SMALL_SEGMENT == allocated(allocator) == reserved(allocator)


def test_counting_three_tensors() -> None:
    """The article on activation memory: the second and third of three randn(256) tensors die."""
    allocator = CachingAllocator()
    first = allocator.malloc(256 * 4)
    second = allocator.malloc(256 * 4)
    allocator.free(first)
    allocator.malloc(256 * 4)
    allocator.free(second)

    expected = {"allocated": 3072, "current": 1024, "freed": 2048, "peak": 2048}
    assert expected == allocator.statistics.allocated_bytes.as_dict()


def test_first_product_of_small_matrices() -> None:
    """The nanoGPT article: 512 for the matrix, then the product and the cuBLAS workspace."""
    allocator = CachingAllocator()
    allocator.malloc(2 * 2 * 4)
    assert (allocated(allocator), reserved(allocator)) == (512, SMALL_SEGMENT)

    allocator.malloc(2 * 2 * 4)
    allocator.malloc(4096 * 2 * KIB + 16 * 8 * KIB)
    assert 8_520_704 == 512 + 512 + 8_519_680 == allocated(allocator)
    assert reserved(allocator) == SMALL_SEGMENT + LARGE_SEGMENT


def test_the_smallest_block_that_fits_is_taken() -> None:
    allocator = CachingAllocator()
    wide, _, narrow, _ = (allocator.malloc(size) for size in (4096, 512, 2048, 512))
    wide_at, narrow_at = wide.address, narrow.address
    allocator.free(wide)
    allocator.free(narrow)

    assert narrow_at == allocator.malloc(1024).address
    assert wide_at == allocator.malloc(1024 + 512).address


def test_of_equal_blocks_the_lowest_is_taken() -> None:
    allocator = CachingAllocator()
    low, _, high, _ = (allocator.malloc(512) for _ in range(4))
    low_at, high_at = low.address, high.address
    allocator.free(high)
    allocator.free(low)

    assert [low_at, high_at] == [allocator.malloc(512).address for _ in range(2)]


def test_neighbours_are_joined_on_free() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.malloc(512) for _ in range(3)]
    for index in (0, 2, 1):
        allocator.free(blocks[index])

    (segment,) = allocator.segments()
    assert [block.size for block in segment.blocks] == [SMALL_SEGMENT]
    assert allocator.statistics.inactive_split_bytes.current == 0


def test_streams_do_not_share_blocks() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(512, stream=1))
    allocator.malloc(512, stream=2)

    assert reserved(allocator) == 2 * SMALL_SEGMENT
    assert [segment.stream for segment in allocator.segments()] == [1, 2]


def test_a_block_in_use_by_another_stream_stays_active() -> None:
    """`free` with outstanding `record_stream` uses: not allocated, not reusable, still active."""
    allocator = CachingAllocator()
    block = allocator.malloc(512)
    at = block.address
    allocator.free(block, still_used=True)

    assert (allocated(allocator), allocator.statistics.active_bytes.current) == (0, 512)
    assert at != allocator.malloc(512).address

    allocator.finish(block)
    assert allocator.statistics.active_bytes.current == 512
    assert at == allocator.malloc(512).address


def test_emptying_the_cache_waits_for_other_streams() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(512), still_used=True)
    allocator.empty_cache()

    assert (reserved(allocator), allocator.statistics.active_bytes.current) == (0, 0)


def test_a_block_cannot_be_freed_twice() -> None:
    allocator = CachingAllocator()
    block = allocator.malloc(512)
    allocator.free(block)

    with pytest.raises(ValueError, match="not allocated"):
        allocator.free(block)


def test_only_whole_segments_go_back_to_the_driver() -> None:
    allocator = CachingAllocator()
    kept = allocator.malloc(2 * MIB)
    allocator.free(allocator.malloc(3 * MIB))
    allocator.free(allocator.malloc(512))
    allocator.empty_cache()
    assert reserved(allocator) == LARGE_SEGMENT

    allocator.free(kept)
    allocator.empty_cache()
    assert reserved(allocator) == 0
    assert (allocator.num_device_alloc, allocator.num_device_free) == (2, 2)


def test_on_a_full_device_the_cache_is_released_and_the_request_retried() -> None:
    allocator = CachingAllocator(capacity_bytes=40 * MIB)
    allocator.free(allocator.malloc(30 * MIB))
    allocator.malloc(32 * MIB)

    assert reserved(allocator) == 32 * MIB
    assert (allocator.num_alloc_retries, allocator.num_ooms) == (1, 0)


def test_out_of_memory_reports_what_was_requested_and_what_is_held() -> None:
    allocator = CachingAllocator(capacity_bytes=40 * MIB)
    allocator.malloc(11 * MIB)  # takes 12
    allocator.malloc(2 * MIB)  # 20 for 2

    with pytest.raises(OutOfMemory) as caught:
        allocator.malloc(19 * MIB)  # asks for 20

    error = caught.value
    assert (error.requested_bytes, error.tried_bytes, error.stream) == (19 * MIB, 20 * MIB, 0)
    assert error.state.free_bytes == 8 * MIB
    assert (error.state.allocated_bytes, error.state.reserved_bytes) == (14 * MIB, 32 * MIB)
    assert (error.state.total_bytes, error.state.process_bytes) == (40 * MIB, 32 * MIB)
    assert (allocator.num_alloc_retries, allocator.num_ooms) == (1, 1)


def test_an_allocator_still_works_after_out_of_memory() -> None:
    allocator = CachingAllocator(capacity_bytes=40 * MIB)
    with pytest.raises(OutOfMemory):
        allocator.malloc(1 << 60)

    assert allocator.malloc(40 * MIB).size == 40 * MIB


def test_a_memory_fraction_limits_what_is_reserved() -> None:
    """It is a fraction of the whole device: half of 30 MiB for PyTorch plus 10 of the context."""
    settings = parse_settings("per_process_memory_fraction:0.5")
    allocator = CachingAllocator(settings, device=Device(30 * MIB, context_bytes=10 * MIB))
    allocator.malloc(20 * MIB)

    with pytest.raises(OutOfMemory, match=r"20\.00 MiB allowed"):
        allocator.malloc(1)


@pytest.mark.parametrize(
    ("size", "text"),
    [(1024, "1024 bytes"), (1536, "1.50 KiB"), (2 << 30, "2.00 GiB"), (1 << 20, "1024.00 KiB")],
)
def test_sizes_print_as_in_pytorch(size: int, text: str) -> None:
    assert text == format_size(size)


def test_old_cached_segments_are_collected_above_the_threshold() -> None:
    """Limit 80 MiB, threshold half: with 42 MiB reserved, a cached segment is released first."""
    settings = parse_settings("garbage_collection_threshold:0.5,per_process_memory_fraction:0.8")
    allocator = CachingAllocator(settings, capacity_bytes=100 * MIB)
    idle = allocator.malloc(20 * MIB)
    allocator.malloc(22 * MIB)
    allocator.free(idle)
    allocator.malloc(24 * MIB)

    assert reserved(allocator) == (22 + 24) * MIB
    assert allocator.num_alloc_retries == 0


def test_nothing_is_collected_without_a_memory_fraction() -> None:
    settings = parse_settings("garbage_collection_threshold:0.5")
    allocator = CachingAllocator(settings, capacity_bytes=100 * MIB)
    allocator.free(allocator.malloc(60 * MIB))
    allocator.malloc(22 * MIB)
    allocator.malloc(12 * MIB)

    assert reserved(allocator) == 60 * MIB


def test_blocks_beyond_max_split_size_are_kept_for_large_requests() -> None:
    allocator = CachingAllocator(parse_settings("max_split_size_mb:64"))
    allocator.free(allocator.malloc(100 * MIB))

    assert allocator.malloc(30 * MIB).size == 30 * MIB  # below 64: not from the large block
    assert reserved(allocator) == 130 * MIB
    assert allocator.malloc(80 * MIB).size == 80 * MIB  # 100 is 20 more than 80: too much
    assert allocator.malloc(81 * MIB).size == 100 * MIB  # whole
    assert reserved(allocator) == 210 * MIB


def test_oversize_blocks_are_released_before_the_whole_cache() -> None:
    settings = parse_settings("max_split_size_mb:64")
    allocator = CachingAllocator(settings, capacity_bytes=200 * MIB)
    for block in [allocator.malloc(size * MIB) for size in (70, 80, 12)]:
        allocator.free(block)
    allocator.malloc(100 * MIB)  # the 80 and then the 70 go; the 12 stays

    assert reserved(allocator) == 112 * MIB
    assert allocator.num_alloc_retries == 0


@pytest.mark.parametrize(
    ("requested", "size"),
    [
        (1200 * KIB, 1280 * KIB),  # 1024..2048 in four steps of 256
        (1024 * KIB, 1024 * KIB),
        (2049 * KIB, 2560 * KIB),
        (2048, 2048),  # not more than 512 x 4: rounded to 512
        (2049, 2560),
    ],
)
def test_rounding_to_divisions_of_powers_of_two(requested: int, size: int) -> None:
    assert size == parse_settings("roundup_power2_divisions:4").round_size(requested)


def test_divisions_differ_by_size() -> None:
    """`[256:1,512:2,>:4]`: 1 up to 511 MiB, 2 up to 1023 MiB, 4 above."""
    settings = parse_settings("roundup_power2_divisions:[256:1,512:2,>:4]")

    assert settings.round_size(300 * MIB) == 300 * MIB
    assert settings.round_size(600 * MIB) == 768 * MIB
    assert settings.round_size(1300 * MIB) == 1536 * MIB
    assert settings.round_size(1000 * KIB) == 1000 * KIB  # of the first entry


def test_expandable_segments_grow_by_pages() -> None:
    """Blocks are exact, and memory grows by 20 MiB as needed."""
    allocator = CachingAllocator(parse_settings("expandable_segments:True"))
    first = allocator.malloc(11 * MIB)
    assert (first.size, reserved(allocator)) == (11 * MIB, 20 * MIB)

    second = allocator.malloc(11 * MIB)  # 9 MiB are left, so one more page
    assert first.address + 11 * MIB == second.address
    assert reserved(allocator) == 40 * MIB

    allocator.malloc(512)
    assert reserved(allocator) == 42 * MIB
    assert allocator.statistics.segment.current == 0
    assert allocator.statistics.inactive_split_bytes.current == 0


def test_expandable_segments_release_free_pages() -> None:
    """Free from 11 to 52 of 60 MiB: of the pages at 0, 20 and 40 only the second lies in it."""
    allocator = CachingAllocator(parse_settings("expandable_segments:True"))
    sizes = (11, 41, 8)
    first, middle, last = (allocator.malloc(size * MIB) for size in sizes)
    allocator.free(middle)
    allocator.empty_cache()
    assert reserved(allocator) == 40 * MIB
    assert [
        (segment.address - first.address, segment.size) for segment in allocator.segments()
    ] == [(0, 20 * MIB), (40 * MIB, 20 * MIB)]

    again = allocator.malloc(41 * MIB)  # fills the gap: free, unmapped, free
    assert first.address + 11 * MIB == again.address
    assert reserved(allocator) == 60 * MIB

    for block in (first, again, last):
        allocator.free(block)
    allocator.empty_cache()
    assert (reserved(allocator), allocator.segments()) == (0, ())


def test_expandable_segments_run_out_of_memory() -> None:
    allocator = CachingAllocator(parse_settings("expandable_segments:True"), 50 * MIB)
    allocator.malloc(30 * MIB)  # two pages of 20

    with pytest.raises(OutOfMemory):
        allocator.malloc(12 * MIB)
    assert allocator.malloc(10 * MIB).size == 10 * MIB


def test_peaks_can_be_reset() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(11 * MIB))
    allocator.reset_peak()

    assert allocator.statistics.allocated_bytes.peak == 0
    assert allocator.statistics.reserved_bytes.peak == 12 * MIB
    assert allocator.large.statistics.allocated_bytes.peak == 0


def test_memory_stats_have_pytorchs_names() -> None:
    allocator = CachingAllocator()
    allocator.malloc(1)
    allocator.malloc(2 * MIB)
    stats = allocator.memory_stats()

    assert stats["allocated_bytes.small_pool.current"] == 512
    assert stats["allocated_bytes.large_pool.peak"] == 2 * MIB
    assert stats["active_bytes.all.allocated"] == 2 * MIB + 512
    assert 2 == stats["segment.all.current"] == stats["allocation.all.current"]
    assert stats["inactive_split_bytes.large_pool.current"] == 18 * MIB


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_a_state_can_be_restored(conf: str) -> None:
    allocator = CachingAllocator(parse_settings(conf))
    blocks = [allocator.malloc(size * 700 * KIB) for size in (1, 2, 3, 40, 1, 9)]
    allocator.free(blocks[1])
    allocator.free(blocks[4])
    allocator.free(blocks[5], still_used=True)

    other = CachingAllocator(parse_settings(conf))
    in_use = restore(other, allocator.segments())
    assert allocator.segments() == other.segments()
    for name, stat in allocator.statistics.stats().items():
        assert stat.current == getattr(other.statistics, name).current, name
    assert allocator.malloc(MIB).address == other.malloc(MIB).address
    assert {blocks[index].address for index in (0, 2, 3, 5)} == set(in_use)


def test_the_snapshot_is_what_memory_viz_reads() -> None:
    allocator = CachingAllocator()
    allocator.malloc(1000)
    (segment,) = allocator.snapshot()

    assert (
        segment["segment_type"],
        segment["total_size"],
        segment["allocated_size"],
    ) == ("small", SMALL_SEGMENT, 1024)
    assert [block["state"] for block in json.loads(json.dumps(segment["blocks"]))] == [
        "active_allocated",
        "inactive",
    ]


def test_default_settings() -> None:
    assert AllocatorSettings() == parse_settings("")
    assert AllocatorSettings() == parse_settings(" backend:native , pinned_num_register_threads:8,")


def test_several_settings() -> None:
    expected = AllocatorSettings(
        max_split_size=128 * MIB,
        garbage_collection_threshold=0.6,
        expandable_segments=True,
        large_segment_size=40 * MIB,
        max_non_split_rounding=40 * MIB,
    )
    assert expected == parse_settings(
        "max_split_size_mb: 128, garbage_collection_threshold:0.6,"
        " expandable_segments:True, large_segment_size_mb:40"
    )


ACCEPTED = (
    "max_split_size_mb:20",
    "max_non_split_rounding_mb:30",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[256:1,512:2,>:4]",
    "roundup_power2_divisions:[>:4,256:8]",
    "roundup_power2_divisions:[64:0]",
    "garbage_collection_threshold:0.8",
    "expandable_segments:False",
    "large_segment_size_mb:11",
)
REFUSED = (
    "max_split_size_mb",
    "max_split_size_mb:19",
    "max_split_size_mb:abc",
    "max_non_split_rounding_mb:10",
    "roundup_power2_divisions:3",
    "roundup_power2_divisions:0",
    "roundup_power2_divisions:[256:3]",
    "roundup_power2_divisions:[3:2]",
    "roundup_power2_divisions:[256:1,512:2",
    "garbage_collection_threshold:0",
    "garbage_collection_threshold:1.0",
    "expandable_segments:true",
    "large_segment_size_mb:10",
)


@pytest.mark.parametrize("text", ACCEPTED)
def test_settings_that_pytorch_accepts(text: str) -> None:
    parse_settings(text)


@pytest.mark.parametrize(
    "text",
    [
        *REFUSED,
        "max_split_size_mb:-1",  # wraps around to unlimited in PyTorch
        "max_split:20",  # some unknown keys PyTorch ignores
        "backend:cudaMallocAsync",
        "per_process_memory_fraction:2",
        "max_split_size_mb:20;expandable_segments:True",
    ],
)
def test_invalid_settings_are_rejected_in_one_sentence(text: str) -> None:
    with pytest.raises(InputError, match=r"^Allocator .*\.$"):
        parse_settings(text)


@pytest.mark.skipif(
    installed_release() < (2, 11), reason="the parser differs, or is only in CUDA builds"
)
def test_pytorch_accepts_and_rejects_the_same_settings() -> None:
    """Every build has the parser, so the installed torch can be compared."""
    script = (
        "import json, sys, torch\n"
        "def accepted(text):\n"
        "    try:\n"
        "        torch._C._accelerator_setAllocatorSettings(text)\n"
        "    except (ValueError, RuntimeError):\n"
        "        return False\n"
        "    return True\n"
        "print(json.dumps([accepted(text) for text in json.load(sys.stdin)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps([*REFUSED, *ACCEPTED]),
        capture_output=True,
        text=True,
        check=True,
    )
    assert [False] * len(REFUSED) + [True] * len(ACCEPTED) == json.loads(done.stdout)
