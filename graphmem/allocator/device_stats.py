"""The counters of a caching allocator (`DeviceStats` in CachingDeviceAllocator.h)."""

from __future__ import annotations

from graphmem.allocator.pool import Pool
from graphmem.allocator.statistics import Stat, Statistics, flat_stats


class DeviceStats:
    """The figures of one device's allocator.

    Attributes:
        small, large: the pools, each with its own statistics.
        statistics: the figures over both pools.
        num_alloc_retries: how often the cache was emptied because the driver refused.
        num_rescues: how often that made room for the request; not PyTorch's, and never reset.
        num_ooms: how often even that did not help.
        num_sync_all_streams: how often it waited for all streams, to empty the cache.
        num_device_alloc, num_device_free: how often memory came from the driver, and went back.
        oversize_allocations: blocks of at least `max_split_size`; `oversize_segments` likewise.
    """

    def __init__(self) -> None:
        self.small = Pool(is_small=True)
        self.large = Pool(is_small=False)
        self.statistics = Statistics()
        self.num_alloc_retries = 0
        self.num_rescues = 0
        self.num_ooms = 0
        self.num_sync_all_streams = 0
        self.num_device_alloc = 0
        self.num_device_free = 0
        self.oversize_allocations = Stat()
        self.oversize_segments = Stat()

    def reset_peak(self) -> None:
        """Reset each peak to the current value (`resetPeakStats`)."""
        for statistics in (self.statistics, self.small.statistics, self.large.statistics):
            statistics.reset_peak()
        self.oversize_allocations.reset_peak()
        self.oversize_segments.reset_peak()

    def reset_accumulated(self) -> None:
        """Reset all counts (`resetAccumulatedStats`)."""
        for statistics in (self.statistics, self.small.statistics, self.large.statistics):
            statistics.reset_accumulated()
        self.oversize_allocations.reset_accumulated()
        self.oversize_segments.reset_accumulated()
        self.num_alloc_retries = self.num_ooms = self.num_sync_all_streams = 0
        self.num_device_alloc = self.num_device_free = 0

    def memory_stats(self) -> dict[str, int]:
        """The figures under the names of `torch.cuda.memory_stats`."""
        pools = {"large_pool": self.large.statistics, "small_pool": self.small.statistics}
        return {
            "num_alloc_retries": self.num_alloc_retries,
            "num_ooms": self.num_ooms,
            "num_device_alloc": self.num_device_alloc,
            "num_device_free": self.num_device_free,
            **flat_stats({"all": self.statistics, **pools}),
        }

    def _reserved_changed(self, pool: Pool, change: int) -> None:
        """Count memory that came from the driver, or went back to it."""
        everybodys = self.statistics.reserved_bytes, pool.statistics.reserved_bytes
        for stat in (*everybodys, *pool.reserved):
            if change > 0:
                stat.increase(change)
            else:
                stat.decrease(-change)
        if change > 0:
            self.num_device_alloc += 1
        else:
            self.num_device_free += 1

    def _splits_changed(self, pool: Pool, count: int, change: int) -> None:
        """Count free blocks of split segments, and bytes in them, that came or went."""
        self.statistics.splits_changed(count, change)
        pool.statistics.splits_changed(count, change)
