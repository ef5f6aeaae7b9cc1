"""Where a driver places new segments.

The allocator uses addresses only to order blocks: of free blocks of one size it takes the lowest,
until torch 2.11; later ages come first (allocator/numbering.py).
A request goes to the lowest free place that is large enough (first fit); drivers differ in what
counts as a place.

(1) Under WDDM, the driver model of Windows and WSL 2: the whole address space, so that segments lie
    side by side at rising addresses.
(2) On Linux: chunks, each a multiple of 32 MiB. If none has room, a new chunk takes the top of the
    highest gap that is wide enough, as the kernel's mmap does, so that chunks go downwards. An
    empty chunk becomes a gap again.

Derived from the recordings that show addresses; docs/exactness.md has the count. Unknown, and so
not modelled: what else of the process lies between segments (libraries, cuBLAS, host memory).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Container
from typing import Literal, Protocol

from graphmem.allocator.settings import MIB

Driver = Literal["linux", "wddm"]
"""The kind of driver: Linux, or Windows and WSL 2."""

DEFAULT_DRIVER: Driver = "linux"
"""Every run known to be on native Linux confirms its order (docs/exactness.md, "Where the driver
puts segments"); `--gpu NAME,driver=wddm` selects the other one."""

_ALIGNMENT = 2 * MIB
_CHUNK = 32 * MIB
_LINUX_SPACE = 1 << 47  # bytes: recorded segments lie far below
_ENDLESS = 1 << 70


class AddressSpace(Protocol):
    """The addresses that a driver has given out, and those that are left."""

    def take(self, size: int) -> int:
        """Take a new range of this many bytes; returns its address."""
        ...

    def give_back(self, address: int) -> None:
        """Return a range; does nothing if it was not taken here."""
        ...


def address_space(driver: Driver, first: int) -> AddressSpace:
    """The addresses from `first` on, all free."""
    return _LinuxSpace(first) if driver == "linux" else _WddmSpace(first)


class _WddmSpace:
    """Clause (1)."""

    def __init__(self, first: int) -> None:
        self._free = _FreeRanges()
        self._free.add(first, first + _ENDLESS)
        self._sizes: dict[int, int] = {}  # of ranges in use

    def take(self, size: int) -> int:
        size = _round_up(max(size, 1), _ALIGNMENT)
        address = self._free.take_lowest(size)
        assert address is not None
        self._sizes[address] = size
        return address

    def give_back(self, address: int) -> None:
        size = self._sizes.pop(address, None)
        if size is not None:
            self._free.add(address, address + size)


class _LinuxSpace:
    """Clause (2)."""

    def __init__(self, first: int) -> None:
        self._gaps = _FreeRanges()
        top = first + _LINUX_SPACE
        self._gaps.add(top - _ENDLESS, top)
        self._chunks: dict[int, int] = {}  # sizes, by address
        self._holes = _FreeRanges()  # in chunks
        self._sizes: dict[int, int] = {}  # of ranges in use

    def take(self, size: int) -> int:
        size = _round_up(max(size, 1), _ALIGNMENT)
        address = self._holes.take_lowest(size)
        if address is None:
            address = self._new_chunk(size)
        self._sizes[address] = size
        return address

    def give_back(self, address: int) -> None:
        size = self._sizes.pop(address, None)
        if size is None:
            return
        begin, end = self._holes.add(address, address + size, self._chunks)
        if self._chunks.get(begin) == end - begin:
            del self._chunks[begin]
            self._holes.remove(begin, end)
            self._gaps.add(begin, end)

    def _new_chunk(self, size: int) -> int:
        """Open a chunk for a range of this size, and put the range at its start."""
        room = _round_up(size, _CHUNK)
        address = self._gaps.take_highest(room)
        assert address is not None
        self._chunks[address] = room
        if size < room:
            self._holes.add(address + size, address + room, self._chunks)
        return address


class _FreeRanges:
    """Ranges (begin, end) by address; neighbours are joined, but not across a border.

    A large model leaves thousands of holes too small for the next segment, but of few sizes, so
    ranges are looked up by size.
    """

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []
        self._begins: dict[int, list[int]] = {}  # by size, rising

    def add(self, begin: int, end: int, borders: Container[int] = ()) -> tuple[int, int]:
        """Add a range; returns the range after joining."""
        index = bisect_left(self._ranges, (begin, end))
        above = self._ranges[index] if index < len(self._ranges) else None
        below = self._ranges[index - 1] if index else None
        if above is not None and above[0] == end and end not in borders:
            self.remove(*above)
            end = above[1]
        if below is not None and below[1] == begin and begin not in borders:
            self.remove(*below)
            begin = below[0]
        self._enter(begin, end)
        return begin, end

    def remove(self, begin: int, end: int) -> None:
        """Remove one whole range."""
        del self._ranges[bisect_left(self._ranges, (begin, end))]
        begins = self._begins[end - begin]
        del begins[bisect_left(begins, begin)]
        if not begins:
            del self._begins[end - begin]

    def take_lowest(self, size: int) -> int | None:
        """Cut the low end off the lowest range that is large enough."""
        found = [(begins[0], room) for room, begins in self._begins.items() if room >= size]
        if not found:
            return None
        begin, room = min(found)
        self.remove(begin, begin + room)
        self._enter(begin + size, begin + room)
        return begin

    def take_highest(self, size: int) -> int | None:
        """Cut the high end off the highest range that is large enough."""
        found = [(begins[-1], room) for room, begins in self._begins.items() if room >= size]
        if not found:
            return None
        begin, room = max(found)
        self.remove(begin, begin + room)
        self._enter(begin, begin + room - size)
        return begin + room - size

    def _enter(self, begin: int, end: int) -> None:
        if begin < end:
            insort(self._ranges, (begin, end))
            insort(self._begins.setdefault(end - begin, []), begin)


def _round_up(size: int, unit: int) -> int:
    return (size + unit - 1) // unit * unit
