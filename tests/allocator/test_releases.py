"""Where the allocator's rules differ between releases of torch, with figures from arithmetic.

Each was found, or confirmed, by running libc10_cuda.so of the releases (tools/real_allocator).
"""

from __future__ import annotations

import pytest

from graphmem.allocator import CachingAllocator, Device, OutOfMemory, parse_settings
from graphmem.allocator.messages import UnclosedBracketError, UnknownAllocatorSettingError
from graphmem.torch_releases.differences import Release
from tests.support.sizes import KIB, MIB

POOL = (0, 1)
ALL: list[Release] = [(2, 11), (2, 12), (2, 13), (2, 14), (2, 15)]
TENTH = "expandable_segments:True,expandable_segments_reserve:0.1"


@pytest.mark.parametrize(("release", "taken"), [*zip(ALL, [2, 0, 0, 0, 0], strict=True)])
def test_the_segment_opened_first_serves_a_request(release: Release, taken: int) -> None:
    """Three free segments of 20 MiB; Linux puts each below the one before."""
    allocator = CachingAllocator(device=Device(driver="linux"), release=release)
    blocks = [allocator.malloc(20 * MIB) for _ in range(3)]
    addresses = [block.address for block in blocks]
    assert addresses == sorted(addresses, reverse=True)
    for block in blocks:
        allocator.free(block)

    assert allocator.malloc(20 * MIB).address == addresses[taken]


@pytest.mark.parametrize(("release", "taken"), [*zip(ALL, [0, 3, 0, 0, 0], strict=True)])
def test_within_a_segment_the_lowest_address_decides(release: Release, taken: int) -> None:
    """Four blocks of 512 KiB fill a segment of 2 MiB; the first and the last are freed.

    In 2.12 the last block is the oldest: what was left of the segment each time a block was cut
    off, and that block was new.
    """
    allocator = CachingAllocator(release=release)
    blocks = [allocator.malloc(512 * KIB) for _ in range(4)]
    addresses = [block.address for block in blocks]
    allocator.free(blocks[0])
    allocator.free(blocks[3])

    assert allocator.malloc(512 * KIB).address == addresses[taken]


@pytest.mark.parametrize(
    ("release", "freed_last", "taken"), [((2, 12), 7, 6), ((2, 12), 6, 0), ((2, 13), 7, 0)]
)
def test_a_merged_block_is_as_old_as_the_one_freed_last(
    release: Release, freed_last: int, taken: int
) -> None:
    """Eight blocks of 256 KiB fill a segment; the first two and the last two are freed.

    In 2.12 the last block was made first, then the others in their order: the second as the third
    of them. So the last two are older than the first two if the last one is freed last.
    """
    allocator = CachingAllocator(release=release)
    blocks = [allocator.malloc(256 * KIB) for _ in range(8)]
    addresses = [block.address for block in blocks]
    for index in (0, 1, 13 - freed_last, freed_last):
        allocator.free(blocks[index])

    assert allocator.malloc(512 * KIB).address == addresses[taken]


@pytest.mark.parametrize(
    ("release", "captures", "returned"),
    [((2, 12), False, False), ((2, 13), False, True), ((2, 13), True, False)],
)
def test_a_pool_in_use_does_not_hold_back_the_cache(
    release: Release, captures: bool, returned: bool
) -> None:
    """40 MiB, 20 of them cached: 30 for a `MemPool` need those back."""
    allocator = CachingAllocator(capacity_bytes=40 * MIB, release=release)
    allocator.private.is_capturing = lambda: captures
    allocator.free(allocator.malloc(20 * MIB))
    allocator.private.begin(POOL, lambda stream: True)

    if returned:
        assert allocator.malloc(30 * MIB).size == 30 * MIB
        assert allocator.statistics.reserved_bytes.current == 30 * MIB
        return
    with pytest.raises(OutOfMemory):
        allocator.malloc(30 * MIB)
    allocator.empty_cache()
    assert allocator.statistics.reserved_bytes.current == 20 * MIB


def refused(conf: str, release: Release, requested: int) -> str:
    """The text, on a card of 1000 MiB; what comes after the figures."""
    allocator = CachingAllocator(parse_settings(conf, release), 1000 * MIB, release=release)
    with pytest.raises(OutOfMemory) as caught:
        allocator.malloc(requested)
    return str(caught.value).split("is reserved by PyTorch but unallocated.")[1]


@pytest.mark.parametrize(
    ("release", "begins"),
    [
        ((2, 13), " If reserved but"),
        ((2, 14), ""),
        ((2, 15), " expandable_segments is enabled. If"),
    ],
)
def test_expandable_segments_are_not_advised_if_they_are_on(release: Release, begins: str) -> None:
    text = refused("expandable_segments:True", release, 1002 * MIB)

    assert text.startswith(begins)
    assert bool(text) == bool(begins)
    assert refused("", release, 1002 * MIB).startswith(" If reserved but unallocated memory is")


def test_a_request_larger_than_an_expandable_segment_fails() -> None:
    """A tenth of 1000 MiB; the text counts in segments, and 119 MiB take 120."""
    assert refused(TENTH, (2, 15), 119 * MIB) == (
        " This allocation exceeds the expandable-segment reserve of 100.00 MiB for this stream, and"
        " a single allocation cannot span expandable segments. Raise PYTORCH_CUDA_ALLOC_CONF"
        " expandable_segments_reserve or expandable_segments_reserve_by_class (or unset it) so that"
        " a segment is at least 120.00 MiB."
    )
    assert refused(TENTH, (2, 15), 1001 * MIB).startswith(" expandable_segments is enabled.")


def test_a_full_expandable_segment_is_followed_by_another() -> None:
    """100 MiB are five pages of 20: 50 and 40 fill the first segment, 40 more need a second."""
    allocator = CachingAllocator(parse_settings(TENTH), 1000 * MIB)
    sizes = [allocator.malloc(size * MIB).segment.size for size in (50, 40, 40)]

    assert sizes == [100 * MIB] * 3
    assert [info.size for info in allocator.segments()] == [40 * MIB, 100 * MIB]


@pytest.mark.parametrize(
    ("value", "mib"),
    [("0.1", 100), ("0.05G", 51.2), ("2", 1125), ("0", 1125), ("-1", 1125), ("much", 1125)],
)
def test_how_many_addresses_a_segment_has(value: str, mib: float) -> None:
    """At most 1 1/8 of the card's 1000 MiB, in whole pages of 2 MiB; the rest is ignored."""
    conf = f"expandable_segments:True,expandable_segments_reserve:{value}"
    allocator = CachingAllocator(parse_settings(conf), 1000 * MIB)

    assert allocator.malloc(1).segment.size == -(-mib // 2) * 2 * MIB


@pytest.mark.parametrize(("release", "mib"), [((2, 9), 640), ((2, 10), 768)])
def test_the_rest_of_the_divisions_includes_the_last_class_in_2_9(
    release: Release, mib: int
) -> None:
    """600 MiB, in quarters of 512 MiB or in halves."""
    settings = parse_settings("roundup_power2_divisions:[256:1,512:2,>:4]", release)

    assert settings.round_size(600 * MIB) == mib * MIB


@pytest.mark.parametrize(
    ("conf", "since"),
    [
        ("per_process_memory_fraction:0.5", (2, 10)),
        ("large_segment_size_mb:40", (2, 11)),
        ("pinned_max_cached_size_mb:64", (2, 13)),
        (TENTH, (2, 15)),
    ],
)
def test_a_key_is_unknown_before_its_release(conf: str, since: Release) -> None:
    major, minor = since
    with pytest.raises(UnknownAllocatorSettingError):
        parse_settings(conf, (major, minor - 1))

    parse_settings(conf, since)


def test_a_reserve_may_be_given_by_class() -> None:
    parse_settings("expandable_segments_reserve_by_class:[serving:0.25,sparse:8G]", (2, 15))
    with pytest.raises(UnclosedBracketError):
        parse_settings("expandable_segments_reserve_by_class:[serving:0.25", (2, 15))
