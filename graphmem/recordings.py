"""Recordings of CUDA memory: snapshots of torch.cuda.memory, and compact event files.

Two formats are read, told apart by their first bytes: the pickle that
`torch.cuda.memory._dump_snapshot` writes (plain or gzip), and `*.events.json` as
docs/sources.md, "Public recordings", describes it.

Files are untrusted. `graphmem/plain_data.py` reads them as pure data, within bounds; here every
part is type-checked before it is used, and nothing that a file may name twice is walked twice.
Anything wrong ends in an InputError of one line.

Not covered: allocations of other processes, and events that a recording's ring buffer dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from graphmem.allocator.pool import BlockInfo, BlockState, SegmentInfo
from graphmem.allocator.settings import (
    AllocatorSettings,
    release_of_snapshot,
    settings_of_snapshot,
)
from graphmem.errors import InputError
from graphmem.frames import is_installed
from graphmem.plain_data import plain_data, unpacked
from graphmem.torch_releases import parse_release
from graphmem.torch_releases.differences import NEWEST_TRIED, Release

MAX_GPU_BYTES = 1 << 42
MAX_EVENTS = 5_000_000
MAX_JSON_BYTES = 1 << 27  # the largest compact file known has 0.4 MB

Action = Literal[
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
]
_JSON_ACTIONS: dict[str, Action] = {
    "a": "alloc",
    "f": "free_completed",
    "S": "segment_alloc",
    "s": "segment_free",
    "M": "segment_map",
    "U": "segment_unmap",
}
_TRACE_ACTIONS: dict[str, Action] = {
    "alloc": "alloc",
    "free_requested": "free_requested",
    "free_completed": "free_completed",
    "segment_alloc": "segment_alloc",
    "segment_free": "segment_free",
    "segment_map": "segment_map",
    "segment_unmap": "segment_unmap",
}
_IGNORED_ACTIONS = ("annotate", "snapshot", "oom", "user_defined", "workspace_snapshot")
_BLOCK_STATES: dict[str, BlockState] = {
    "active_allocated": "active_allocated",
    "active_pending_free": "active_pending_free",
    "active_awaiting_free": "active_pending_free",
    "inactive": "inactive",
}


class NeitherRecordingError(InputError):
    """A file is of neither kind that is read."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is neither a memory snapshot (pickle) nor a compact event file.")


class NoSuchDeviceError(InputError):
    """A recording has no such device."""

    def __init__(self, device: int) -> None:
        super().__init__(f"it has no device {device}.")


class TornSegmentError(InputError):
    """A segment is not the sum of its blocks."""

    def __init__(self, address: object) -> None:
        super().__init__(f"its segment at {address:#x} does not consist of its blocks.")


class UnknownEventError(InputError):
    """A recording has an event that PyTorch never writes."""

    def __init__(self, event: str) -> None:
        super().__init__(f"it has an unknown event {event!r}.")


class TooManyRowsError(InputError):
    """A recording is too long."""

    def __init__(self, count: int, what: str, limit: int) -> None:
        super().__init__(f"it has {count:,} {what}, more than {limit:,}.")


class NotStringError(InputError):
    """A recording has another type where a string belongs."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"it has {kind} instead of a string.")


class NotNumberError(InputError):
    """A recording has another type where a number belongs."""

    def __init__(self, shown: str) -> None:
        super().__init__(f"it has {shown!r} instead of a number.")


class NumberOutOfRangeError(InputError):
    """A number in a recording makes no sense."""

    def __init__(self, number: str) -> None:
        super().__init__(f"the number {number!r} is out of range.")


class UnusableFileError(InputError):
    """A recording contradicts itself or what PyTorch writes."""

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(f"{path} is not a usable recording: {reason}")


class ForeignRecordingError(InputError):
    """A file lacks the structure of a recording."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path} is not a memory recording as PyTorch writes it ({what}).")


class Frame(NamedTuple):
    """One line of a stack."""

    filename: str
    function: str
    line: int


@dataclass(frozen=True, slots=True)
class Event:
    """An entry of the allocator's history.

    Attributes:
        address: its address; in a compact file, only the ordinal of its first appearance.
        size: requested bytes of a block, actual bytes of a segment.
        frames: the stack, innermost first; empty if it was not recorded.
        user_frame: the innermost frame of the user's Python code, if any.
    """

    action: Action
    address: int
    size: int
    stream: int = 0
    frames: tuple[Frame, ...] = ()
    user_frame: Frame | None = None


class Counters(msgspec.Struct, frozen=True):
    """The counters of PyTorch's allocator at one moment, in bytes."""

    allocated: int
    reserved: int
    max_allocated: int
    max_reserved: int


@dataclass(frozen=True, slots=True)
class Recording:
    """The history of one device's allocator.

    Attributes:
        name: the file's name.
        events: the history, oldest first.
        settings: the allocator's configuration at that time.
        final: the segments after the last event; None in a compact file.
        base_allocated: bytes allocated before the first event, if the file says so.
        base_reserved: bytes reserved before it.
        has_addresses: whether addresses are real, not ordinals.
        counted: PyTorch's counters before the first event and after the last, if the file has them.
        release: the version of torch whose rules the allocator followed.
    """

    name: str
    events: tuple[Event, ...]
    settings: AllocatorSettings = field(default_factory=AllocatorSettings)
    final: tuple[SegmentInfo, ...] | None = None
    base_allocated: int | None = None
    base_reserved: int | None = None
    has_addresses: bool = True
    counted: tuple[Counters, Counters] | None = None
    release: Release = NEWEST_TRIED


def read_recording(path: str | Path, device: int | None = None) -> Recording:
    """Read a snapshot or a compact event file.

    Args:
        path: the file.
        device: the GPU whose history to read; by default the first that has one.

    Raises:
        InputError: the file cannot be read, or is not such a recording.
    """
    path = Path(path)
    data = unpacked(path)
    try:
        if data[:1] == b"{":
            return _from_json(path.name, data)
        if data[:1] == b"\x80":
            return _from_snapshot(path.name, plain_data(data), device)
    except InputError as error:
        raise UnusableFileError(path, error) from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        what = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise ForeignRecordingError(path, what) from None
    raise NeitherRecordingError(path)


def _from_snapshot(name: str, snapshot: Any, device: int | None) -> Recording:
    """The recording of one device, from the result of `torch.cuda.memory._snapshot`."""
    traces = snapshot["device_traces"]
    if device is None:
        device = next((index for index, trace in enumerate(traces) if trace), 0)
    _check_count(len(traces), "devices", 1 << 10)
    if not 0 <= device < len(traces):
        raise NoSuchDeviceError(device)
    settings = snapshot.get("allocator_settings", {})
    settings = settings if isinstance(settings, Mapping) else {}
    segments = [segment for segment in snapshot["segments"] if segment.get("device", 0) == device]
    _check_count(len(traces[device]), "events", MAX_EVENTS)
    _check_count(sum(len(segment["blocks"]) for segment in segments), "blocks", MAX_EVENTS)
    return Recording(
        name=name,
        events=tuple(_trace_events(traces[device])),
        settings=settings_of_snapshot(settings),
        final=tuple(sorted(map(_segment_info, segments), key=lambda info: info.address)),
        release=release_of_snapshot(settings),
    )


def _trace_events(trace: Iterable[Any]) -> Iterator[Event]:
    frames: dict[int, Frame] = {}  # by identity, because snapshots share their frames
    stacks: dict[int, tuple[tuple[Frame, ...], Frame | None]] = {}
    for entry in trace:
        action = _TRACE_ACTIONS.get(_text(entry["action"]))
        if action is None:
            if entry["action"] in _IGNORED_ACTIONS:
                continue
            raise UnknownEventError(entry["action"][:40])
        raw = entry.get("frames", ())
        if id(raw) not in stacks:
            stack = tuple(_frame(each, frames) for each in raw)
            stacks[id(raw)] = (stack, next(filter(is_user_frame, stack), None))
        yield Event(
            action,
            _number(entry["addr"]),
            _size(entry["size"]),
            _number(entry["stream"]),
            *stacks[id(raw)],
        )


def _frame(raw: Any, known: dict[int, Frame]) -> Frame:
    frame = known.get(id(raw))
    if frame is None:
        frame = Frame(_text(raw["filename"]), _text(raw["name"]), _number(raw["line"]))
        known[id(raw)] = frame
    return frame


def is_user_frame(frame: Frame) -> bool:
    """Whether a frame is Python code outside installed packages and the standard library."""
    path = frame.filename.replace("\\", "/")
    is_pythons = "/lib/python3" in path or "<frozen " in path
    return path.endswith(".py") and not is_pythons and not is_installed(path)


def _segment_info(raw: Any) -> SegmentInfo:
    blocks = []
    address = _number(raw["address"])
    for block in raw["blocks"]:
        size = _size(block["size"])
        state = _BLOCK_STATES[block["state"]]
        requested = 0 if state == "inactive" else _size(block.get("requested_size", size))
        blocks.append(BlockInfo(address, size, requested, state))
        address += size
    if address != raw["address"] + raw["total_size"] or any(block.size == 0 for block in blocks):
        raise TornSegmentError(raw["address"])
    return SegmentInfo(
        address=_number(raw["address"]),
        size=_size(raw["total_size"]),
        stream=_number(raw["stream"]),
        is_small=raw["segment_type"] == "small",
        is_expandable=bool(raw.get("is_expandable", False)),
        blocks=tuple(blocks),
    )


class _CompactFile(msgspec.Struct):
    """The parts of a compact event file that are read; rows are checked while decoding."""

    events: list[Annotated[list[int | str], msgspec.Meta(min_length=3, max_length=4)]]
    sites: list[str] = []
    replay: dict[str, Any] = {}
    allocator_settings: dict[str, Any] = {}
    base: Counters | None = None
    marks: list[Counters] = []
    torch: str | None = None


def _from_json(name: str, data: bytes) -> Recording:
    """The recording in a compact event file."""
    _check_count(len(data), "bytes", MAX_JSON_BYTES)
    content = msgspec.json.decode(data, type=_CompactFile)
    _check_count(len(content.events), "events", MAX_EVENTS)
    sites = [_site_frames(site) for site in content.sites]
    replayed = content.replay
    return Recording(
        name=name,
        events=tuple(_json_event(row, sites) for row in content.events),
        settings=settings_of_snapshot(content.allocator_settings),
        base_allocated=_size(replayed["base_alloc"]) if "base_alloc" in replayed else None,
        base_reserved=_size(replayed["base_res"]) if "base_res" in replayed else None,
        has_addresses=False,
        counted=(content.base, content.marks[-1]) if content.base and content.marks else None,
        release=(
            release_of_snapshot(content.allocator_settings)
            if content.torch is None
            else parse_release(content.torch)
        ),
    )


def _json_event(row: list[int | str], sites: list[tuple[Frame, ...]]) -> Event:
    """`[op, size, ordinal]`, and for an allocation the index of its site."""
    action = _JSON_ACTIONS.get(_text(row[0]))
    if action is None:
        raise UnknownEventError(str(row[0])[:40])
    frames = sites[_number(row[3], len(sites))] if len(row) > 3 else ()
    return Event(action, _number(row[2]), _size(row[1]), 0, frames, frames[-1] if frames else None)


_SITE_END = re.compile(r":(\d+)(?:<|$)")


def _site_frames(site: str) -> tuple[Frame, ...]:
    """`train.py:main:16<linear.py:forward:125`: the user's line, then the library's within it."""
    if site == "engine":  # the autograd thread has no Python frames
        return ()
    frames, start = [], 0
    for end in _SITE_END.finditer(site):
        file, _, function = site[start : end.start()].partition(":")
        frames.append(Frame(file, function, int(end[1])))
        start = end.end()
    return tuple(reversed(frames))


def _check_count(count: int, what: str, limit: int) -> None:
    """Reject more items than any recording has, before looking at each."""
    if count > limit:
        raise TooManyRowsError(count, what, limit)


def _text(value: object) -> str:
    """A string; other values are not even formatted, because that may not end."""
    if type(value) is not str:
        raise NotStringError(type(value).__name__)
    return value


def _number(value: object, limit: int = 1 << 64) -> int:
    """An integer of a sane size."""
    if type(value) is not int:
        shown = value[:40] if type(value) is str else type(value).__name__
        raise NotNumberError(shown)
    if not 0 <= value < limit:
        raise NumberOutOfRangeError(str(value)[:40])
    return value


def _size(value: object) -> int:
    """A number of bytes that a GPU could have."""
    return _number(value, MAX_GPU_BYTES)
