"""Replay a recording's sizes and order through the allocator, and compare where blocks land.

The allocator alone decides which block a request gets. Three things that no model can know are
taken from the recording: (1) the address of each new segment, which is the driver's choice;
(2) when cached segments are returned, which depends on the program's calls and on the memory left;
(3) when a block used by several streams becomes free.

A *miss* is an allocation at an address other than the recorded one, or a segment that was opened
or returned on one side only. In a compact file addresses are ordinals of first appearance. There a
miss is an ordinal that appears at two places, or a place with two ordinals. Between free blocks of
equal size in different segments the driver's addresses decide: the recorded choice is followed
(counted as `ties`) as long as it is consistent with some order of the segments.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from graphmem.allocator.caching_allocator import CachingAllocator
from graphmem.allocator.device import Device
from graphmem.allocator.pool import Block, BlockInfo, Key, Segment, SegmentInfo
from graphmem.allocator.restoring import restore
from graphmem.allocator.settings import SMALL_SEGMENT, AllocatorSettings
from graphmem.recordings import Event, Recording
from graphmem.torch_releases.differences import Release
from graphmem.verify.messages import NoInitialStateError
from graphmem.verify.rewind import initial_state

_SEGMENT_BITS = 41  # in a compact file each segment gets its own address range
_UNRECORDED = 1 << 62  # the address of segments that the recording does not have


@dataclass(frozen=True, slots=True)
class Miss:
    """An event that the model does not reproduce."""

    index: int
    event: Event
    what: str


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of replaying a recording through the model.

    Attributes:
        events: how many were replayed.
        misses: how many of them the model does not reproduce.
        first_miss: where it begins to differ.
        ties: choices between equal blocks that were taken from a compact file.
        guessed_bytes: allocated bytes before the first event that are a guess.
        base_allocated, base_reserved: bytes before the first event.
        peak_allocated, peak_reserved, end_allocated, end_reserved, end_requested: the model's
            bytes.
    """

    name: str
    events: int
    misses: int
    first_miss: Miss | None
    ties: int
    guessed_bytes: int
    base_allocated: int
    base_reserved: int
    peak_allocated: int
    peak_reserved: int
    end_allocated: int
    end_reserved: int
    end_requested: int


def replay(recording: Recording, since: int = 0) -> Replay:
    """Replay a recording from the state before its first event.

    Args:
        recording: the recording.
        since: the event from which figures count.

    Raises:
        InputError: the recording lacks that state.
    """
    segments, guessed = _initial_segments(recording)
    return replay_from(recording, segments, guessed, since)


def replay_from(
    recording: Recording,
    segments: tuple[SegmentInfo, ...],
    guessed_bytes: int = 0,
    since: int = 0,
) -> Replay:
    """Replay a recording from a given state."""
    expandable = any(segment.is_expandable for segment in segments)
    expandable |= any(event.action == "segment_map" for event in recording.events)
    settings = recording.settings
    if expandable:  # turned on by the program, so the settings may not show it
        settings = dataclasses.replace(settings, expandable_segments=True)
    replayer = _Replayer(settings, recording)
    replayer.start(segments)
    statistics = replayer.allocator.statistics
    base = statistics.allocated_bytes.current, statistics.reserved_bytes.current
    for index, event in enumerate(recording.events):
        if index == since:
            statistics.reset_peak()
            base = statistics.allocated_bytes.current, statistics.reserved_bytes.current
        replayer.step(index, event)
    return Replay(
        name=recording.name,
        events=len(recording.events),
        misses=replayer.misses,
        first_miss=replayer.first_miss,
        ties=replayer.allocator.ties,
        guessed_bytes=guessed_bytes,
        base_allocated=base[0],
        base_reserved=base[1],
        peak_allocated=statistics.allocated_bytes.peak,
        peak_reserved=statistics.reserved_bytes.peak,
        end_allocated=statistics.allocated_bytes.current,
        end_reserved=statistics.reserved_bytes.current,
        end_requested=statistics.requested_bytes.current,
    )


def _initial_segments(recording: Recording) -> tuple[tuple[SegmentInfo, ...], int]:
    """The state before the first event, and how many bytes of it are a guess."""
    if recording.final is not None:
        state = initial_state(recording)
        return state.segments, state.guessed_bytes
    allocated, reserved = recording.base_allocated, recording.base_reserved
    if allocated == reserved == 0:
        return (), 0
    if allocated is None or reserved != SMALL_SEGMENT:
        raise NoInitialStateError(recording.name)
    return (_packed(allocated),), 0


def _packed(allocated: int) -> SegmentInfo:
    """One small segment, the only one, assumed to be filled from its start."""
    blocks = (
        BlockInfo(0, allocated, allocated, "active_allocated"),
        BlockInfo(allocated, SMALL_SEGMENT - allocated, 0, "inactive"),
    )
    return SegmentInfo(0, SMALL_SEGMENT, 0, True, False, blocks)


class _RecordedDevice(Device):
    """Places segments where the recording had them, until the model's segments differ."""

    def __init__(self) -> None:
        super().__init__(first_address=_UNRECORDED)
        self.announced: deque[int] = deque()
        self.follows = True
        self.elsewhere: dict[int, int] = {}  # recorded addresses that were not followed
        self.segments: Mapping[int, Segment] = {}  # the allocator's

    def place(self, size: int) -> int:
        recorded = self.announced.popleft() if self.announced else None
        if recorded is not None and self.follows and self._has_room(recorded, size):
            return recorded
        address = super().place(size)
        if recorded is not None:
            self.follows = False
            self.elsewhere[recorded] = address
        return address

    def place_expandable(self, room: int) -> int:
        """Place the first page as recorded; a recording does not show the room after it."""
        if self.announced and self.follows and self._has_room(self.announced[0], 1):
            return self.announced.popleft()
        return self.place(room)

    def _has_room(self, address: int, size: int) -> bool:
        """Whether no memory lies there; in a valid recording none does."""
        end = address + size
        return all(
            end <= segment.address or _end_of_memory(segment) <= address
            for segment in self.segments.values()
        )


def _end_of_memory(segment: Segment) -> int:
    if not segment.page_size:
        return segment.address + segment.size
    mapped = (block for block in segment.blocks() if block.mapped)
    return max((block.address + block.size for block in mapped), default=segment.address)


class _GuidedAllocator(CachingAllocator):
    """Lets the recording decide between equal blocks of different segments."""

    def __init__(
        self, settings: AllocatorSettings, device: _RecordedDevice, release: Release
    ) -> None:
        super().__init__(settings, device=device, release=release)
        device.segments = self.by_address
        self.guided = False
        self.wanted: int | None = None  # the recorded address, if known
        self.taken: dict[int, int] = {}  # the ordinal of each address
        self.ties = 0
        self._order: set[tuple[int, int]] = set()  # segments: (lower, higher)

    def _best_fit(self, free: list[Key], size: int) -> int:
        index = super()._best_fit(free, size)
        if not self.guided or index + 1 >= len(free) or free[index + 1][0] != free[index][0]:
            return index
        lowest: dict[int, int] = {}  # by segment: the first of its equal blocks
        for position in range(index, len(free)):
            if free[position][0] != free[index][0]:
                break
            lowest.setdefault(free[position][-1] >> _SEGMENT_BITS, position)
        for segment, position in lowest.items():
            address = free[position][-1]
            fits = address == self.wanted or (self.wanted is None and address not in self.taken)
            if fits and not any((other, segment) in self._order for other in lowest):
                self._order.update((segment, other) for other in lowest if other != segment)
                self.ties += len(lowest) > 1
                return position
        return index


class _Replayer:
    """Feeds events to an allocator, and maps recorded blocks to the model's."""

    def __init__(self, settings: AllocatorSettings, recording: Recording) -> None:
        self.device = _RecordedDevice()
        self.allocator = _GuidedAllocator(settings, self.device, recording.release)
        self.allocator.guided = not recording.has_addresses
        self.misses = 0
        self.first_miss: Miss | None = None
        self._has_addresses = recording.has_addresses
        self._blocks: dict[int, Block] = {}  # by recorded address
        self._places: dict[int, int] = {}  # of each ordinal

    def start(self, segments: tuple[SegmentInfo, ...]) -> None:
        """Put the allocator into the state before the first event."""
        in_use = restore(self.allocator, segments)
        if self._has_addresses:
            self._blocks = in_use

    def step(self, index: int, event: Event) -> None:
        """Replay one event."""
        what = None
        match event.action:
            case "alloc":
                what = self._alloc(event)
            case "free_requested":
                what = self._request_free(event)
            case "free_completed":
                what = self._free(event)
            case "segment_alloc":
                self.device.announced.append(self._segment_address(event))
            case "segment_map":
                self.device.announced = deque([event.address])
            case "segment_free" | "segment_unmap":
                what = self._release(event)
        if what is not None:
            self.misses += 1
            self.first_miss = self.first_miss or Miss(index, event, what)

    def _alloc(self, event: Event) -> str | None:
        if event.size == 0:
            return None
        allocator = self.allocator
        if allocator.guided:
            allocator.wanted = self._places.get(event.address)
        block = allocator.malloc(event.size, event.stream)
        self._blocks[event.address] = block
        if self.device.announced:
            self.device.announced.clear()
            if not block.segment.page_size:
                self.device.follows = False
                return "the recording opened a segment, the model did not"
        if self._has_addresses:
            same = block.address == event.address
        else:
            same = self._places.setdefault(event.address, block.address) == block.address
            same &= allocator.taken.setdefault(block.address, event.address) == event.address
        return None if same else f"the model's block is at {block.address:#x}"

    def _request_free(self, event: Event) -> str | None:
        block = self._blocks.get(event.address)
        if block is None or not block.allocated:
            return "the model has no such block in use"
        self.allocator.free(block, still_used=True)
        return None

    def _free(self, event: Event) -> str | None:
        block = self._blocks.pop(event.address, None)
        if block is None:
            return "the model has no such block in use"
        if block.pending:
            self.allocator.finish(block)
        else:
            self.allocator.free(block)
        return None

    def _release(self, event: Event) -> str | None:
        recorded = self._segment_address(event)
        address = self.device.elsewhere.pop(recorded, recorded)
        released = self.allocator.release_segment(address)
        if not self._has_addresses:
            end = address + event.size
            for ordinal, place in list(self._places.items()):
                if address <= place < end:
                    del self._places[ordinal], self.allocator.taken[place]
        if released == event.size:
            return None
        self.device.follows = False
        return f"the model returns {released} bytes"

    def _segment_address(self, event: Event) -> int:
        """The model's address of a recorded segment."""
        return event.address if self._has_addresses else (event.address + 1) << _SEGMENT_BITS
