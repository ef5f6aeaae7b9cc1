"""The caching allocator itself: which block a request gets, and what is reserved for it.

The rules are those of `DeviceCachingAllocator` in c10/cuda/CUDACachingAllocator.cpp; each method
names the function whose rule it follows. They hold for torch 2.1 to 2.15; torch_releases/ has the
differences. Not modelled: cudaMallocAsync; other processes (leave theirs out of `capacity_bytes`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from graphmem.allocator.device import Device
from graphmem.allocator.device_stats import DeviceStats
from graphmem.allocator.expandable import ExpandableSegments, expandable_size
from graphmem.allocator.numbering import Numbering
from graphmem.allocator.out_of_memory import LATEST_RELEASE, MemoryState, OutOfMemory
from graphmem.allocator.pool import EVERYBODYS, Block, Key, Pool, PoolId, Segment, SegmentInfo
from graphmem.allocator.private_pools import PrivatePools
from graphmem.allocator.reclaiming import long_unused, too_large_to_split
from graphmem.allocator.segment_info import segment_infos, torch_snapshot
from graphmem.allocator.settings import SMALL_LIMIT, AllocatorSettings
from graphmem.allocator.splitting import should_split


class CachingAllocator(DeviceStats):
    """One device's caching allocator, with the figures of `DeviceStats`.

    Attributes:
        settings: the allocator's configuration.
        device: the memory that it manages.
        private: the pools of CUDA graphs and of `torch.cuda.MemPool`.
        release: the version of torch whose rules and wording apply.
        by_address: the segments.
        on_event: called at each event with (action, address, bytes, stream); actions are those of a
            snapshot's `device_traces` (`record_trace`). For "oom", the address is the free bytes.
    """

    def __init__(
        self,
        settings: AllocatorSettings | None = None,
        capacity_bytes: int | None = None,
        device: Device | None = None,
        release: tuple[int, int] = LATEST_RELEASE,
    ) -> None:
        """Make an empty allocator.

        Args:
            settings: the configuration; default: PyTorch's.
            capacity_bytes: memory that PyTorch can use on this device; None: unlimited.
            device: instead of a capacity, a device that also chooses addresses.
            release: the version of torch whose rules and wording apply.
        """
        super().__init__()
        self.settings = settings or AllocatorSettings()
        self.device = device or Device(capacity_bytes)
        self.private = PrivatePools(self.small, self.large, release)
        self.release = release
        self.on_event: Callable[[str, int, int, int], None] | None = None
        self._numbering = Numbering(release)
        self.by_address: dict[int, Segment] = {}
        self._pending: dict[int, Block] = {}
        self._nothing = Segment(self.small, 0, 0, 0, 0).head
        self._expandable: ExpandableSegments | None = None
        self.configure(self.settings)

    def configure(self, settings: AllocatorSettings) -> None:
        """Change the settings from now on (`setAllocatorSettings`)."""
        self.settings = settings
        if settings.expandable_segments and self._expandable is None:
            self._expandable = ExpandableSegments(
                self.device,
                settings.large_segment_size,
                self.by_address,
                self._numbering,
                self._pages_changed,
            )
        if self._expandable is not None:
            self._expandable.reserve = settings.expandable_reserve

    @property
    def limit_bytes(self) -> int | None:
        """The bytes that its memory fraction lets the process reserve (`setMemoryFraction`)."""
        fraction, total = self.settings.memory_fraction, self.device.total_bytes
        return None if fraction is None or total is None else int(fraction * total)

    def malloc(self, requested_bytes: int, stream: int = 0) -> Block:
        """Hand out a block (`malloc`, `alloc_found_block`); a request of 0 bytes takes nothing.

        Raises:
            OutOfMemory: the device is full even with an empty cache.
        """
        if requested_bytes <= 0:
            if requested_bytes < 0:
                raise ValueError(f"A request of {requested_bytes} bytes makes no sense.")
            return self._nothing
        size = self.settings.round_size(requested_bytes)
        pool = self.small if size <= SMALL_LIMIT else self.large
        if self.private.are_in_use:
            pool = self.private.pool_for(stream, size) or pool
        block = self._cached_block(pool, stream, size)
        if block is None:
            block = self._new_block(pool, stream, size, requested_bytes)
        return self.hand_out(block, size, requested_bytes, should_split(block, size, self.settings))

    def hand_out(self, block: Block, size: int, requested: int, cut: bool) -> Block:
        """Hand out a block that was taken out of its pool (`alloc_found_block`).

        With `cut`, all but its low `size` bytes goes back to the pool.
        """
        self._split(block, size, cut)
        block.allocated = True
        block.requested = requested
        self.statistics.handed_out(block.size, requested)
        block.segment.pool.statistics.handed_out(block.size, requested)
        if self._is_oversize(block.size):
            self.oversize_allocations.increase(1)
        self._tell("alloc", block.address, requested, block.segment.stream)
        return block

    def free(self, block: Block, *, still_used: bool = False) -> None:
        """Take a block back (`free`).

        With `still_used`, another stream is not done with it yet (`record_stream`): the block
        leaves `allocated_bytes` now, but stays active until `finish` or until the cache is
        emptied. On a real device, when that happens depends on timing.
        """
        if not block.allocated:
            if block is self._nothing:
                return
            raise ValueError(f"{block!r} is not allocated.")
        block.allocated = False
        self.statistics.given_up(block.size)
        block.segment.pool.statistics.given_up(block.size)
        if self._is_oversize(block.size):
            self.oversize_allocations.decrease(1)
        self._tell("free_requested", block.address, block.requested, block.segment.stream)
        if still_used:
            block.pending = True
            self._pending[block.address] = block
        else:
            self._recycle(block)

    def finish(self, block: Block) -> None:
        """Recycle a block freed with `still_used` once its streams are done (`process_events`)."""
        if not block.pending:
            raise ValueError(f"{block!r} does not wait for a stream.")
        del self._pending[block.address]
        block.pending = False
        self._recycle(block)

    def empty_cache(self, pool_id: PoolId = EVERYBODYS) -> None:
        """Return every unused segment or page to the driver (`release_cached_blocks`).

        The shared pools keep theirs while a capture is in progress; private pools return theirs
        once they have no users.

        Args:
            pool_id: empty only this private pool.
        """
        pools = [
            each
            for private in self.private.unused()
            if pool_id in (EVERYBODYS, private.id)
            for each in (private.small, private.large)
        ]
        if pool_id == EVERYBODYS and not self.private.hold_memory_back:
            self.num_sync_all_streams += 1
            for block in list(self._pending.values()):
                self.finish(block)
            pools = [self.large, self.small, *pools]
        for pool in pools:
            for block in pool.free_blocks():
                self._release(block)
        self.private.drop_empty()

    def release_segment(self, address: int) -> int:
        """Return the free segment (or the pages of the free block) at an address to the driver.

        Returns:
            the bytes returned; 0 if nothing there can be.
        """
        segment = self.by_address.get(address)
        if segment is not None and not segment.page_size:
            head = segment.head
            return self._release(head) if head.is_free else 0
        for pool in (self.large, self.small, *self.private.pools()):
            for block in pool.free_blocks():
                if block.address <= address < block.address + block.size:
                    return self._release(block)
        return 0

    def segments(self) -> tuple[SegmentInfo, ...]:
        """The reserved segments and their blocks, by address (`snapshot`)."""
        return segment_infos(self.by_address.values())

    def snapshot(self) -> list[dict[str, object]]:
        """The segments as `torch.cuda.memory_snapshot` lists them."""
        return torch_snapshot(self.segments())

    def _best_fit(self, free: list[Key], size: int) -> int:
        """The index of the smallest free block that fits; allocator/numbering.py has the ties."""
        return bisect_left(free, (size, 0, 0))

    def _cached_block(self, pool: Pool, stream: int, size: int) -> Block | None:
        """Take the best free block of the stream out of its pool (`get_free_block`)."""
        pool.searches += 1
        free = pool.free.get(stream)
        if not free:
            return None
        index = self._best_fit(free, size)
        if not self.settings.expandable_segments:  # older expandable ones are not used any more
            while index < len(free) and pool.block_at(free[index][-1]).segment.page_size:
                index += 1
        if index == len(free):
            return None
        block = pool.block_at(free[index][-1])
        while block.segment.page_size and index + 1 < len(free):  # compare by what it can grow to
            index += 1
            other = pool.block_at(free[index][-1])
            if expandable_size(other) >= expandable_size(block):
                break
            block = other
        oversize = self.settings.max_split_size
        if oversize is not None:
            if size < oversize <= block.size:
                return None
            if size >= oversize and block.size >= size + self.settings.max_non_split_rounding:
                return None
        pool.remove(block)
        return block

    def _split(self, block: Block, size: int, cut: bool) -> None:
        """Split off the rest of a block, and count free parts that come, shrink or go."""
        pool, was_split, rest = block.segment.pool, block.is_split, block.size - size
        if cut:
            pool.insert(block.cut(size))  # in C++ the rest is the old block, this one is new
            block.number = self._numbering.of_part(block.number)
        if block.segment.page_size or not (cut or was_split):
            return
        if not was_split:
            count, change = 1, rest
        elif cut:
            count, change = 0, -size
        else:
            count, change = -1, -block.size
        self._splits_changed(pool, count, change)

    def _recycle(self, block: Block) -> None:
        """Return a block to its pool, merged with its free neighbours (`free_block`)."""
        pool = block.segment.pool
        size, requested = block.size, block.requested
        self._tell("free_completed", block.address, requested, block.segment.stream)
        block, merged, merged_size = pool.merge(block)
        pool.insert(block)
        if not block.segment.page_size and (merged or block.is_split):
            count, change = -merged, -merged_size
            if block.is_split:
                count, change = count + 1, change + block.size
            self._splits_changed(pool, count, change)
        self.statistics.taken_back(size, requested)
        pool.statistics.taken_back(size, requested)

    def _new_block(self, pool: Pool, stream: int, size: int, requested: int) -> Block:
        """Get memory from the driver, returning some first if necessary (`malloc`)."""
        if requested >= OutOfMemory.ONE_EXABYTE:
            raise self._out_of_memory(requested, size, stream)
        if self.limit_bytes is not None and self.settings.garbage_collection_threshold > 0:
            self._collect_garbage(self.limit_bytes)
        block = self._open(pool, stream, size) or self._helped_out(pool, stream, size)
        if block is None and self._release_oversize(pool, stream, size):
            block = self._open(pool, stream, size)
        if block is None and not self.private.hold_memory_back:
            self.empty_cache()
            self.num_alloc_retries += 1
            block = self._open(pool, stream, size)
            self.num_rescues += block is not None
        if block is None:
            raise self._out_of_memory(requested, self.settings.segment_size(size), stream)
        return block

    def _helped_out(self, pool: Pool, stream: int, size: int) -> Block | None:
        """Take a free block of a private pool with `use_on_oom` (`try_mempool_fallback`)."""
        if pool.id != EVERYBODYS:
            return None
        pools = (
            each.large if size > SMALL_LIMIT else each.small for each in self.private.helpers()
        )
        blocks = (self._cached_block(each, stream, size) for each in pools)
        return next((block for block in blocks if block is not None), None)

    def _open(self, pool: Pool, stream: int, size: int) -> Block | None:
        """Ask the driver for a segment, or for pages (`alloc_block`)."""
        segment_size = self.settings.segment_size(size)
        limit = self.limit_bytes
        if limit is not None and self.device.reserved_bytes + segment_size > limit:
            return None
        if self._expandable is not None and self.settings.expandable_segments:
            return self._expandable.take(pool, stream, size)
        if not self.device.reserve(segment_size):
            return None
        address = self.device.place(segment_size)
        block = self.enter_segment(pool, address, segment_size, stream)
        self._tell("segment_alloc", address, segment_size, stream)
        return block

    def enter_segment(self, pool: Pool, address: int, size: int, stream: int) -> Block:
        """Register a segment from cudaMalloc; its one block is not in the pool yet."""
        segment = Segment(pool, address, size, stream, 0, self._numbering.of_segment())
        self.by_address[address] = segment
        self.statistics.segment.increase(1)
        pool.statistics.segment.increase(1)
        if self._is_oversize(size):
            self.oversize_segments.increase(1)
        self._reserved_changed(pool, size)
        return segment.head

    def enter_stretch(self, pool: Pool, info: SegmentInfo, end: int) -> Block:
        """Register a recorded stretch of an expandable segment."""
        if self._expandable is None:
            raise ValueError("The recorded state has expandable segments, the settings do not.")
        return self._expandable.adopt(pool, info.stream, info.address, info.size, end)

    def enter_block(self, pool: Pool, block: Block) -> None:
        """Register a recorded block of a segment that was just entered."""
        if block.is_free:
            pool.insert(block)
            if block.is_split and not block.segment.page_size:
                self._splits_changed(pool, 1, block.size)
            return
        for statistics in (self.statistics, pool.statistics):
            statistics.handed_out(block.size, block.requested)
            if block.pending:
                statistics.given_up(block.size)
        if block.pending:
            self._pending[block.address] = block

    def _release(self, block: Block) -> int:
        """Return a free block's memory to the driver if possible (`release_blocks`)."""
        segment = block.segment
        if segment.page_size:
            return 0 if self._expandable is None else self._expandable.unmap(block)
        if block.is_split:
            return 0
        segment.pool.remove(block)
        del self.by_address[segment.address]
        self.device.give_back(segment.size)
        self.device.vacate(segment.address)
        self.statistics.segment.decrease(1)
        segment.pool.statistics.segment.decrease(1)
        self._reserved_changed(segment.pool, -segment.size)
        if self._is_oversize(segment.size):
            self.oversize_segments.decrease(1)
        self._tell("segment_free", segment.address, segment.size, segment.stream)
        return segment.size

    def _release_oversize(self, pool: Pool, stream: int, size: int) -> bool:
        """Return just enough blocks too large to split; returns whether there were enough."""
        limit = self.settings.max_split_size
        if limit is None or self.settings.expandable_segments:
            return False
        blocks = too_large_to_split(pool, stream, size, limit)
        return sum([self._release(block) for block in blocks]) >= max(size, limit)

    def _collect_garbage(self, limit: int) -> None:
        """Return large segments that have long been unused."""
        threshold = int(self.settings.garbage_collection_threshold * limit)
        for block in long_unused(self.large, self.device.reserved_bytes - threshold):
            self._release(block)

    def _is_oversize(self, size: int) -> bool:
        oversize = self.settings.max_split_size
        return oversize is not None and size >= oversize

    def _tell(self, action: str, address: int, size: int, stream: int) -> None:
        if self.on_event is not None:
            self.on_event(action, address, size, stream)

    def _pages_changed(self, segment: Segment, address: int, change: int) -> None:
        """Count pages that were mapped or unmapped."""
        self._reserved_changed(segment.pool, change)
        action = "segment_map" if change > 0 else "segment_unmap"
        self._tell(action, address, abs(change), segment.stream)

    def _out_of_memory(self, requested: int, tried: int, stream: int) -> OutOfMemory:
        self.num_ooms += 1
        expandable = self._expandable if self.settings.expandable_segments else None
        free, rounded = self.device.free_bytes or 0, self.settings.round_size(requested)
        self._tell("oom", free, rounded, stream)
        state = MemoryState(
            total_bytes=self.device.total_bytes or 0,
            free_bytes=free,
            process_bytes=self.device.process_bytes,
            allowed_bytes=self.limit_bytes,
            allocated_bytes=self.statistics.allocated_bytes.current,
            reserved_bytes=self.statistics.reserved_bytes.current,
            private_bytes=sum(private.free_bytes for private in self.private),
            expandable_bytes=None if expandable is None else expandable.reserve_bytes,
        )
        return OutOfMemory(requested, tried, stream, state, self.release)
