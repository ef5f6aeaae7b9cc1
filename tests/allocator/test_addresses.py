"""Where drivers place new segments: recorded addresses, and the block choices that follow.

The recordings are those of docs/exactness.md; addresses are copied from their segment_alloc events.
"""

from __future__ import annotations

import random

import pytest
import torch

import graphmem
from graphmem import TrainingStep
from graphmem.allocator import CachingAllocator, Device
from graphmem.allocator.addresses import Driver, address_space
from tests.support.sizes import MIB


def placed(driver: Driver, sizes_mib: list[int], first: int) -> list[int]:
    """The addresses of segments of these sizes, shifted so that the first one lies at `first`."""
    space = address_space(driver, 0)
    addresses = [space.take(size * MIB) for size in sizes_mib]
    return [address - addresses[0] + first for address in addresses]


def test_on_linux_segments_descend_and_small_ones_fill_gaps_in_chunks() -> None:
    """cs336xl_s_ctx128_fp32_train, the first four segments."""
    recorded = [0x72DC_CE00_0000, 0x72DC_CC00_0000, 0x72DC_CD40_0000, 0x72DC_CA00_0000]

    assert recorded == placed("linux", [20, 20, 2, 20], recorded[0])


def test_on_linux_the_second_of_two_segments_may_share_the_chunk_of_the_first() -> None:
    """cs336large_cl512_fw_bf16, segments 11 to 20: 14 MiB fit beside 14 MiB, not beside 20."""
    sizes = [14, 20, 20, 14, 20, 20, 14, 20, 20, 14]
    starts = [0xCC, 0xCA, 0xC8, 0xCC, 0xC6, 0xC4, 0xC2, 0xC0, 0xBE, 0xC2]
    recorded = [0x7FE6_0000_0000 + (start << 24) for start in starts]
    recorded[3] += 14 * MIB
    recorded[9] += 14 * MIB

    assert recorded == placed("linux", sizes, recorded[0])


def test_on_linux_chunks_are_multiples_of_32_mib() -> None:
    """mha_lm128_infer: 782 MiB and again; cs336xl_s_ctx128_fp32_train: 100 MiB and again."""
    assert 800 * MIB == 0x7E31_1000_0000 - 0x7E30_DE00_0000

    assert placed("linux", [782, 782], 800 * MIB) == [800 * MIB, 0]
    assert placed("linux", [100, 100], 128 * MIB) == [128 * MIB, 0]


def test_on_linux_a_new_segment_takes_the_lowest_place_in_a_used_chunk() -> None:
    """As cs336large_cl128_fw_with_grad after `empty_cache`: 20 MiB rise from chunk to chunk."""
    space = address_space("linux", 0)
    large = [space.take(20 * MIB) for _ in range(3)]
    small = [space.take(12 * MIB) for _ in range(3)]
    for address in large:
        space.give_back(address)

    assert sorted(large) == [space.take(20 * MIB) for _ in range(3)]
    assert space.take(20 * MIB) < min(large + small)


def test_on_linux_an_empty_chunk_is_a_gap_and_gaps_are_filled_from_the_top() -> None:
    """cs336large_cl128_fw_with_grad: they fall from 0x7f360a… to 0x7f35f8…, then to 0x7f35d8…."""
    space = address_space("linux", 0)
    chunks = [space.take(32 * MIB) for _ in range(5)]
    for address in chunks[1:4]:
        space.give_back(address)

    assert chunks[1:4] == [space.take(20 * MIB) for _ in range(3)]
    assert chunks[4] - 32 * MIB == space.take(20 * MIB)


def test_under_wddm_segments_rise_side_by_side() -> None:
    """lm100_fwd, segments 2 to 13."""
    recorded = [0x5_0200_0000, 0x5_0220_0000, 0x5_0240_0000, 0x5_0260_0000, 0x5_03A0_0000]
    recorded += [0x5_03C0_0000, 0x5_03E0_0000, 0x5_0400_0000, 0x5_0420_0000, 0x5_0560_0000]
    recorded += [0x5_0580_0000, 0x5_05A0_0000]

    assert recorded == placed("wddm", [2, 2, 2, 20, 2, 2, 2, 2, 20, 2, 2, 20], recorded[0])


def test_under_wddm_the_lowest_wide_enough_place_is_filled_first() -> None:
    """opt125m_zo_decomfl: 108 MiB below segments of 148 MiB, which five of 20 MiB fill."""
    space = address_space("wddm", 0xB_0260_0000)
    below = space.take(108 * MIB)
    above = [space.take(148 * MIB) for _ in range(2)]
    space.give_back(below)

    assert above[1] + 148 * MIB == space.take(148 * MIB)
    recorded = [0xB_0260_0000, 0xB_03A0_0000, 0xB_04E0_0000, 0xB_0620_0000, 0xB_0760_0000]
    assert recorded == [space.take(20 * MIB) for _ in range(5)]
    assert space.take(2 * MIB) == 0xB_08A0_0000


def test_the_lowest_wide_enough_of_many_holes_is_filled() -> None:
    """First fit, hole by hole, as computed from a list of the addresses in use."""
    space, chosen, used = address_space("wddm", 0), random.Random(7), dict[int, int]()
    for _ in range(600):
        if used and chosen.random() < 0.45:
            address = chosen.choice(list(used))
            space.give_back(address)
            del used[address]
            continue
        size = chosen.choice([2, 4, 20, 22, 60]) * MIB
        lowest = 0
        for address in sorted(used):
            if address - lowest >= size:
                break
            lowest = address + used[address]
        assert space.take(size) == lowest
        used[lowest] = size


def test_the_lowest_address_wins_between_free_blocks_of_one_size() -> None:
    """Two segments of 20 MiB, each with 10 MiB free: Linux puts the second one below the first.

    From torch 2.12 on ages decide (test_releases.py).
    """
    taken = {}
    drivers: tuple[Driver, ...] = ("linux", "wddm")
    for driver in drivers:
        allocator = CachingAllocator(device=Device(driver=driver), release=(2, 11))
        blocks = [allocator.malloc(5 * MIB) for _ in range(8)]
        for freed in (blocks[2], blocks[3], blocks[6], blocks[7]):
            allocator.free(freed)
        taken[driver] = allocator.malloc(10 * MIB).segment is blocks[0].segment

    assert taken == {"linux": False, "wddm": True}


def test_released_segments_are_placed_again() -> None:
    allocator = CachingAllocator(device=Device(driver="linux"))
    first, second = allocator.malloc(20 * MIB), allocator.malloc(20 * MIB)
    assert second.address < first.address
    address = first.address
    allocator.free(first)
    allocator.empty_cache()

    assert address == allocator.malloc(20 * MIB).address


def test_nothing_is_placed_among_earlier_segments() -> None:
    device = Device(100 * MIB)
    device.occupy(0x7FE6_CC00_0000, 20 * MIB)
    device.vacate(0x7FE6_CC00_0000)

    assert device.place(20 * MIB) > 0x7FE6_CC00_0000 + 20 * MIB


@pytest.mark.parametrize(
    ("torch_version", "driver", "reserved_mib"),
    [("2.11", "linux", 40), ("2.11", "wddm", 52), ("2.13", "linux", 52), ("2.13", "wddm", 52)],
)
def test_the_platform_of_the_card_decides_which_hole_a_tensor_fills(
    torch_version: str, driver: Driver, reserved_mib: int
) -> None:
    """Two segments of 20 MiB, each half free. Linux fills the second, which lies lower: the first
    is soon free, and has room for 12 MiB. WDDM fills the first: 12 MiB need a new segment. So does
    torch 2.13 anywhere, as the first was opened first.
    """

    def empty(mib: int) -> torch.Tensor:
        return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")

    def step() -> None:
        first, second = [empty(5) for _ in range(4)], [empty(5) for _ in range(4)]
        del first[2:], second[2:]
        second.append(empty(10))
        first.clear()
        empty(12)

    report = graphmem.analyze(
        lambda: TrainingStep(step=step),
        gpu=f"a100,driver={driver}",
        torch=torch_version,
        steps=1,
    )

    assert report.memory is not None
    assert report.memory.reserved == reserved_mib * MIB
