"""Reads the C++ object `DeviceStats` (c10/core/CachingDeviceAllocator.h of torch 2.9 to 2.15)."""

from __future__ import annotations

from graphmem.allocator.statistics import POOLS
from graphmem.torch_releases.differences import Release

_METRICS = ("current", "peak", "allocated", "freed")
_BEFORE_MAP = "allocation segment active inactive_split allocated_bytes reserved_bytes".split()
_AFTER_MAP = "active_bytes inactive_split_bytes requested_bytes".split()
_MAP_SINCE: Release = (2, 13)  # `reserved_bytes_by_private_pools`, which is not read
_MAP_NUMBERS = 4  # an `ska::flat_hash_map` is as large as four numbers


def read_stats(raw: bytes, release: Release) -> dict[str, int]:
    """The statistics under the names of `torch.cuda.memory_stats`."""
    numbers = memoryview(raw).cast("q")
    return {name: numbers[index] for index, name in enumerate(_names(release)) if name}


def _names(release: Release) -> list[str]:
    """The name of each 64-bit number in the object; "" for one that is not read."""
    return [
        *_named(_BEFORE_MAP),
        *([""] * _MAP_NUMBERS if release >= _MAP_SINCE else []),
        *_named(_AFTER_MAP),
        *("num_alloc_retries", "num_ooms"),
        *(f"oversize_allocations.{metric}" for metric in _METRICS),
        *(f"oversize_segments.{metric}" for metric in _METRICS),
        *("num_sync_all_streams", "num_device_alloc", "num_device_free"),
    ]


def _named(figures: list[str]) -> list[str]:
    return [f"{name}.{pool}.{metric}" for name in figures for pool in POOLS for metric in _METRICS]
