"""The state before a recording's first event, found by undoing its events from the last.

A snapshot has the state at the end. It does not have the size of a block that existed before the
recording and was freed in it: events only have the requested bytes. Such a block
(1) has exactly its rounded size in the small pool and in expandable segments, where 512 spare
bytes are always split off; (2) in the large pool may keep up to 1 MiB more. No free block of that
pool is that small, so a gap of at most 1 MiB after it belongs to it; if the gap is wider, the block
is assumed to have its rounded size. `guessed_bytes` counts the bytes of clause (2).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

from graphmem.allocator.pool import BlockInfo, BlockState, SegmentInfo
from graphmem.allocator.settings import MIB, SMALL_LIMIT, SMALL_SEGMENT, AllocatorSettings
from graphmem.recordings import Event, Recording
from graphmem.verify.messages import (
    BlockOutsideError,
    NoFirstStateError,
    OverlappingSegmentsError,
    SegmentTooSmallError,
)

_PAGE = SMALL_SEGMENT  # every page of an expandable segment is a multiple of this
_LARGE_PAGE = 20 * MIB


@dataclass(frozen=True, slots=True)
class InitialState:
    """The segments before the first event, and how many allocated bytes in them are guessed."""

    segments: tuple[SegmentInfo, ...]
    guessed_bytes: int


@dataclass(slots=True)
class _Live:
    """A block in use, with its size if the snapshot has it."""

    requested: int
    size: int | None = None
    pending: bool = False


@dataclass(slots=True)
class _Range:
    """A segment, or a stretch of an expandable one."""

    address: int
    size: int
    stream: int
    is_small: bool
    is_expandable: bool


def initial_state(recording: Recording) -> InitialState:
    """Undo all events of a recording that ends with a snapshot.

    Raises:
        InputError: the recording has no final state, or its events contradict that state.
    """
    if recording.final is None:
        raise NoFirstStateError(recording.name)
    ranges = _undo_segments(recording)
    starts = [item.address for item in ranges]
    inside: list[dict[int, _Live]] = [{} for _ in ranges]
    for address, live in sorted(_undo_blocks(recording).items()):
        index = bisect_right(starts, address) - 1
        if index < 0 or address >= ranges[index].address + ranges[index].size:
            raise BlockOutsideError(recording.name)
        inside[index][address] = live
    segments, guessed = [], 0
    for item, blocks in zip(ranges, inside, strict=True):
        guessed += _settle_sizes(item, blocks, recording.settings)
        segments.append(_segment(item, blocks))
    return InitialState(tuple(segments), guessed)


def _undo_blocks(recording: Recording) -> dict[int, _Live]:
    """The blocks in use before the first event, by address."""
    live = {
        block.address: _Live(block.requested, block.size, block.state == "active_pending_free")
        for segment in recording.final or ()
        for block in segment.blocks
        if block.is_active
    }
    for event in reversed(recording.events):
        if event.action == "alloc":
            live.pop(event.address, None)
        elif event.action == "free_completed":
            live[event.address] = _Live(event.size, pending=True)
        elif event.action == "free_requested" and event.address in live:
            live[event.address].pending = False
    return live


def _undo_segments(recording: Recording) -> list[_Range]:
    """The segments before the first event, by address."""
    plain = {
        info.address: _Range(info.address, info.size, info.stream, info.is_small, False)
        for info in recording.final or ()
        if not info.is_expandable
    }
    for event in reversed(recording.events):
        if event.action == "segment_alloc":
            plain.pop(event.address, None)
        elif event.action == "segment_free":
            is_small = event.size == SMALL_SEGMENT
            plain[event.address] = _Range(event.address, event.size, event.stream, is_small, False)
    ranges = sorted([*plain.values(), *_undo_maps(recording)], key=lambda item: item.address)
    for lower, higher in pairwise(ranges):
        if lower.address + lower.size > higher.address:
            raise OverlappingSegmentsError(recording.name)
    return ranges


def _undo_maps(recording: Recording) -> list[_Range]:
    """The stretches of expandable segments that had memory before the first event."""
    pages: dict[int, tuple[int, bool]] = {}  # stream, small pool
    for info in recording.final or ():
        if info.is_expandable:
            pages.update(dict.fromkeys(_pages(info), (info.stream, info.is_small)))
    for event in reversed(recording.events):
        if event.action == "segment_map":
            for page in _pages(event):
                pages.pop(page, None)
        elif event.action == "segment_unmap":
            is_small = event.size % _LARGE_PAGE != 0
            pages.update(dict.fromkeys(_pages(event), (event.stream, is_small)))
    return _stretches(pages)


def _pages(stretch: SegmentInfo | Event) -> range:
    return range(stretch.address, stretch.address + stretch.size, _PAGE)


def _stretches(pages: dict[int, tuple[int, bool]]) -> list[_Range]:
    """Neighbouring pages of one stream and pool, joined."""
    result: list[_Range] = []
    for page, (stream, is_small) in sorted(pages.items()):
        last = result[-1] if result else None
        if last is not None and (last.address + last.size, last.stream, last.is_small) == (
            page,
            stream,
            is_small,
        ):
            last.size += _PAGE
        else:
            result.append(_Range(page, _PAGE, stream, is_small, True))
    return result


def _settle_sizes(item: _Range, blocks: dict[int, _Live], settings: AllocatorSettings) -> int:
    """Give each block of a segment a size; returns the guessed bytes."""
    guessed = 0
    ends = [*blocks, item.address + item.size][1:]
    for (address, block), end in zip(blocks.items(), ends, strict=True):
        if block.size is not None:
            continue
        block.size = settings.round_size(block.requested)
        spare = end - address - block.size
        oversize = settings.max_split_size
        unsplit = oversize is not None and block.size >= oversize
        if not (item.is_small or item.is_expandable) and (unsplit or 0 < spare <= SMALL_LIMIT):
            block.size += spare
            guessed += spare
    return guessed


def _segment(item: _Range, blocks: dict[int, _Live]) -> SegmentInfo:
    """A segment with its blocks in use, and free ones in the gaps between."""
    parts: list[BlockInfo] = []
    at = item.address
    for address, block in blocks.items():
        if address > at:
            parts.append(BlockInfo(at, address - at, 0, "inactive"))
        size = block.size or 0
        state: BlockState = "active_pending_free" if block.pending else "active_allocated"
        parts.append(BlockInfo(address, size, block.requested, state))
        at = address + size
    end = item.address + item.size
    if at < end:
        parts.append(BlockInfo(at, end - at, 0, "inactive"))
    elif at > end:
        raise SegmentTooSmallError(item.address)
    return SegmentInfo(
        item.address, item.size, item.stream, item.is_small, item.is_expandable, tuple(parts)
    )
