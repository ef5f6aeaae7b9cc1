"""Expandable segments: one range of addresses per pool and stream, mapped as needed.

Note [Expandable Segments] in c10/cuda/CUDACachingAllocator.cpp. Physical pages are 2 MiB in the
small pool, `large_segment_size` (20 MiB) in the large one.
"""

from __future__ import annotations

from collections.abc import Callable

from graphmem.allocator.device import Device
from graphmem.allocator.numbering import Numbering
from graphmem.allocator.pool import Block, Pool, Segment
from graphmem.allocator.settings import SMALL_SEGMENT, ExpandableReserve


class ExpandableSegments:
    """Maps pages at the lowest address that fits, and unmaps pages that nothing uses.

    Attributes:
        reserve: how large new ranges are; None: as large as the device allows.
    """

    def __init__(
        self,
        device: Device,
        large_page_size: int,
        segments: dict[int, Segment],
        numbering: Numbering,
        pages_changed: Callable[[Segment, int, int], None],
    ) -> None:
        """Start without ranges.

        Args:
            device: gives addresses and physical memory.
            large_page_size: bytes per page in the large pool.
            segments: where the ranges are registered, by address.
            numbering: numbers ranges and blocks.
            pages_changed: called with segment, address, and the bytes mapped, negative if
                unmapped.
        """
        self._device = device
        self._large_page_size = large_page_size
        self._segments = segments
        self._numbering = numbering
        self.reserve: ExpandableReserve | None = None
        self._pages_changed = pages_changed

    @property
    def reserve_bytes(self) -> int:
        """The bytes that a new range should have (`clamp_reserve_bytes`)."""
        total, most = self._device.total_bytes, self._device.address_room
        if self.reserve is None or total is None:
            return most
        return min(self.reserve.bytes_of(total), most)

    def take(self, pool: Pool, stream: int, size: int) -> Block | None:
        """Take a free, mapped block of at least this size (`try_allocate_expandable_block`)."""
        candidate = self._lowest_room(pool, stream, size)
        if candidate is None:
            return None
        if not candidate.mapped:
            mapped = self._map(candidate, min(candidate.size, size))
            if mapped is None:
                return None
            candidate = mapped
        while candidate.size < size:  # free memory followed by unmapped room
            room = candidate.next
            assert room is not None
            mapped = self._map(room, min(size - candidate.size, room.size))
            if mapped is None:
                return None
            candidate = mapped
        pool.remove(candidate)
        return candidate

    def open(self, pool: Pool, stream: int, address: int, size: int) -> Segment:
        """Open a new range of addresses without memory."""
        page_size = SMALL_SEGMENT if pool.is_small else self._large_page_size
        number = self._numbering.of_segment()
        segment = Segment(pool, address, size, stream, page_size, number)
        segment.head.mapped = False
        pool.insert(segment.head)
        self._segments[address] = segment
        return segment

    def adopt(self, pool: Pool, stream: int, address: int, size: int, end: int) -> Block:
        """Map a stretch that a recording shows as mapped; its one block is not in the pool yet.

        A stream's range is assumed to start at its lowest stretch, and to end before `end`.
        """
        unmapped = pool.unmapped_blocks(stream)
        block = unmapped[-1] if unmapped else None
        if block is None or not block.address <= address < block.address + block.size:
            room = max(min(self._device.address_room, end - address), size)
            block = self.open(pool, stream, address, room).head
        pool.remove(block)
        if address > block.address:
            gap, block = block, block.cut(address - block.address)
            pool.insert(gap)
        if size < block.size:
            pool.insert(block.cut(size))
        block.mapped = True
        self._pages_changed(block.segment, address, size)
        return block

    def unmap(self, block: Block) -> int:
        """Unmap the pages that lie entirely in a free block (`unmap_block`)."""
        segment, pool = block.segment, block.segment.pool
        page, base = segment.page_size, segment.address
        begin = base + (block.address - base + page - 1) // page * page
        end = base + (block.address + block.size - base) // page * page
        if begin >= end:
            return 0
        pool.remove(block)
        if begin > block.address:  # in C++ both ends are new blocks, the middle is the old one
            low, block = block, block.cut(begin - block.address)
            low.number = self._numbering.of_part(block.number)
            pool.insert(low)
        if block.size > end - begin:
            pool.insert(self._cut(block, end - begin))
        block.mapped = False
        block, _, _ = pool.merge(block)
        pool.insert(block)
        self._device.give_back(end - begin)
        self._pages_changed(segment, begin, begin - end)
        if not block.is_split:
            pool.remove(block)
            del self._segments[base]
            self._device.vacate(base)
        return end - begin

    def _lowest_room(self, pool: Pool, stream: int, size: int) -> Block | None:
        """The lowest block from which there is room, mapped or not (`find_expandable_block`).

        Returns:
            None: the request exceeds even a new range.
        """
        for unmapped in pool.unmapped_blocks(stream):
            before = unmapped.prev
            first = before if before is not None and before.is_free else unmapped
            if _room_from(first, size) >= size:
                return first
        page = SMALL_SEGMENT if pool.is_small else self._large_page_size
        room = _whole_pages(self.reserve_bytes, page)
        if size > room:
            if self._device.total_bytes is not None:
                return None
            room = _whole_pages(size, page)
        return self.open(pool, stream, self._device.place_expandable(room), room).head

    def _map(self, block: Block, size: int) -> Block | None:
        """Map whole pages from the start of an unmapped block (`map_block`)."""
        segment, pool = block.segment, block.segment.pool
        size = _whole_pages(size, segment.page_size)
        if not self._device.reserve(size):
            return None
        pool.remove(block)
        if size < block.size:
            pool.insert(self._cut(block, size))
        block.mapped = True
        address = block.address
        block, _, _ = pool.merge(block)
        pool.insert(block)
        self._pages_changed(segment, address, size)
        return block

    def _cut(self, block: Block, size: int) -> Block:
        """Split off a new block for all but the low `size` bytes."""
        rest = block.cut(size)
        rest.number = self._numbering.of_part(block.number)
        return rest


def expandable_size(block: Block) -> int:
    """The size that best fit compares: a free block and the unmapped room after it."""
    room = block.next
    return block.size + (room.size if room is not None and not room.mapped else 0)


def _whole_pages(size: int, page: int) -> int:
    """`numSegments` pages."""
    return (size + page - 1) // page * page


def _room_from(block: Block | None, enough: int) -> int:
    """Count contiguous free bytes from a block on, mapped or not, until there are enough."""
    size = 0
    while size < enough and block is not None and block.is_free:
        size += block.size
        block = block.next
    return size
