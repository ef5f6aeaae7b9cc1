"""Blocks, segments, and the pools of free blocks."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from graphmem.allocator.statistics import Stat, Statistics

PoolId = tuple[int, int]
"""`MempoolId_t`: the first number is nonzero for a graph's own pool, the second for a `MemPool`."""
EVERYBODYS: PoolId = (0, 0)

Key = tuple[int, int, int]
"""What orders the free blocks of a stream: size, number, address."""

BlockState = Literal["active_allocated", "active_pending_free", "inactive"]
BLOCK_STATES: tuple[BlockState, ...] = get_args(BlockState)


class Segment:
    """A range of addresses obtained from the driver: one cudaMalloc, or one expandable range."""

    __slots__ = ("address", "head", "page_size", "pool", "size", "stream")

    def __init__(
        self, pool: Pool, address: int, size: int, stream: int, page_size: int, number: int = 0
    ) -> None:
        self.pool = pool
        self.address = address
        self.size = size
        self.stream = stream
        self.page_size = page_size  # physical pages of an expandable segment; 0: cudaMalloc
        self.head = Block(self, address, size)  # lives as long as the segment: see `absorb`
        self.head.number = number

    def blocks(self) -> Iterator[Block]:
        """All blocks, by address."""
        block: Block | None = self.head
        while block is not None:
            yield block
            block = block.next


class Block:
    """A part of a segment: handed out, free, or (in an expandable segment) not yet mapped.

    A block that is handed out is the low part of the free block it is cut from, and a free block is
    absorbed by its lower neighbour. So the first block of a segment is always the same object.
    """

    __slots__ = (
        "address",
        "allocated",
        "cached_at",
        "mapped",
        "next",
        "number",
        "pending",
        "prev",
        "requested",
        "segment",
        "size",
    )

    def __init__(self, segment: Segment, address: int, size: int) -> None:
        self.segment = segment
        self.address = address
        self.size = size
        self.requested = 0
        self.allocated = False
        self.pending = False  # freed, but a stream still uses it
        self.mapped = True
        self.cached_at = 0  # the pool's count of searches when this block became free
        self.number = 0  # before the address, decides between free blocks of one size
        self.prev: Block | None = None
        self.next: Block | None = None

    @property
    def is_split(self) -> bool:
        """Whether the block shares its segment with others."""
        return self.prev is not None or self.next is not None

    @property
    def is_free(self) -> bool:
        """Whether nothing uses the block (it may lack physical memory)."""
        return not (self.allocated or self.pending)

    def cut(self, size: int) -> Block:
        """Keep the low `size` bytes, and return a new block for the rest."""
        rest = Block(self.segment, self.address + size, self.size - size)
        rest.mapped = self.mapped
        rest.number = self.number
        rest.prev = self
        rest.next = self.next
        if rest.next is not None:
            rest.next.prev = rest
        self.next = rest
        self.size = size
        return rest

    def absorb(self, other: Block) -> None:
        """Absorb the next block, which ceases to exist."""
        self.size += other.size
        self.next = other.next
        if self.next is not None:
            self.next.prev = self

    def __repr__(self) -> str:
        state = "allocated" if self.allocated else "pending" if self.pending else "free"
        return f"Block({self.address:#x}, {self.size} bytes, {state})"


class Pool:
    """The free blocks of small or of large size (`BlockPool`).

    They are ordered by size, number (allocator/numbering.py) and address.

    Attributes:
        id: the private pool that it belongs to, or `EVERYBODYS`.
        statistics: shared by all small, or by all large pools (`get_stat_types_for_pool`).
        reserved: figures of its own reserved memory, and of the private pool it belongs to.
        may_split: whether its blocks may be split (not with `no_split` of a `MemPool`).
    """

    __slots__ = (
        "free",
        "id",
        "is_small",
        "may_split",
        "reserved",
        "searches",
        "statistics",
        "unmapped",
        "_at",
    )

    def __init__(self, is_small: bool, pool_id: PoolId = EVERYBODYS) -> None:
        self.is_small = is_small
        self.id = pool_id
        self.statistics = Statistics()
        self.reserved: tuple[Stat, ...] = ()
        self.may_split = True
        self.searches = 0
        self.free: dict[int, list[Key]] = {}  # by stream
        self.unmapped: dict[int, list[int]] = {}  # by stream: addresses without physical memory
        self._at: dict[int, Block] = {}

    def private(self, pool_id: PoolId, whole: Stat) -> Pool:
        """Make an empty private pool for the same sizes, counted in this one's statistics.

        Args:
            pool_id: the private pool that it belongs to.
            whole: reserved bytes of both pools of that private pool.
        """
        pool = Pool(self.is_small, pool_id)
        pool.statistics = self.statistics
        pool.reserved = Stat(), whole
        return pool

    def insert(self, block: Block) -> None:
        """Add a free or an unmapped block."""
        stream = block.segment.stream
        self._at[block.address] = block
        if not block.mapped:
            insort(self.unmapped.setdefault(stream, []), block.address)
            return
        block.cached_at = self.searches
        key = _key(block)
        free = self.free.get(stream)
        if free is None:
            self.free[stream] = [key]
        else:
            insort(free, key)

    def remove(self, block: Block) -> None:
        """Remove a free or an unmapped block."""
        del self._at[block.address]
        stream = block.segment.stream
        if block.mapped:
            free = self.free[stream]
            del free[bisect_left(free, _key(block))]
        else:
            self.unmapped[stream].remove(block.address)

    def merge(self, block: Block) -> tuple[Block, int, int]:
        """Merge a free block with its free neighbours (`try_merge_blocks`); it keeps its number.

        Returns:
            the merged block, not yet inserted; the number of neighbours merged; and their bytes.
        """
        count = size = 0
        number = block.number
        left = block.prev
        if left is not None and left.is_free and left.mapped == block.mapped:
            self.remove(left)
            count, size = 1, left.size
            left.absorb(block)
            block = left
        right = block.next
        if right is not None and right.is_free and right.mapped == block.mapped:
            self.remove(right)
            count, size = count + 1, size + right.size
            block.absorb(right)
        block.number = number
        return block, count, size

    def block_at(self, address: int) -> Block:
        """The free or unmapped block at an address."""
        return self._at[address]

    def free_blocks(self) -> list[Block]:
        """All free, mapped blocks of all streams, in search order."""
        return [self._at[address] for free in self.free.values() for _, _, address in free]

    def unmapped_blocks(self, stream: int) -> list[Block]:
        """A stream's blocks without physical memory, by address."""
        return [self._at[address] for address in self.unmapped.get(stream, ())]


def _key(block: Block) -> Key:
    return block.size, block.number, block.address


@dataclass(frozen=True, slots=True)
class BlockInfo:
    """One block in a snapshot."""

    address: int
    size: int
    requested: int
    state: BlockState

    @property
    def is_active(self) -> bool:
        """Whether the program or a stream uses it."""
        return self.state != "inactive"


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One segment in a snapshot; of an expandable segment, one mapped stretch."""

    address: int
    size: int
    stream: int
    is_small: bool
    is_expandable: bool
    blocks: tuple[BlockInfo, ...]
    pool_id: PoolId = EVERYBODYS
