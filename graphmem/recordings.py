"""Recordings of CUDA memory: snapshots of torch.cuda.memory, and compact event files.

Two formats are read, told apart by their first bytes: the pickle that
`torch.cuda.memory._dump_snapshot` writes (plain or gzip), and `*.events.json` as
docs/sources.md, "Public recordings", describes it.

A file may come from anyone. A pickle is first checked opcode by opcode against the few that plain
data needs (so it can name no class, call nothing, and build no deep nest), then read by an
unpickler that refuses every global. Whatever does not fit ends in an InputError of one line.

Not covered: allocations of other processes, and what a recording's ring buffer has dropped.
"""

from __future__ import annotations

import gzip
import io
import pickle
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from graphmem.allocator.pool import BlockInfo, BlockState, SegmentInfo
from graphmem.allocator.settings import AllocatorSettings, settings_of_snapshot
from graphmem.errors import InputError

MAX_BYTES = 1 << 30  # of a file, packed or unpacked
MAX_GPU_BYTES = 1 << 42

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
_IGNORED_ACTIONS = ("snapshot", "oom", "user_defined", "workspace_snapshot")
_BLOCK_STATES: dict[str, BlockState] = {
    "active_allocated": "active_allocated",
    "active_pending_free": "active_pending_free",
    "active_awaiting_free": "active_pending_free",
    "inactive": "inactive",
}


class Frame(NamedTuple):
    """One line of a stack."""

    filename: str
    function: str
    line: int


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the allocator's history.

    Attributes:
        address: where; in a compact file, only the ordinal of its first appearance.
        size: requested bytes of a block, true bytes of a segment.
        frames: the stack, innermost first; empty if it was not recorded.
        user_frame: the innermost frame of the user's own Python code, if there is one.
    """

    action: Action
    address: int
    size: int
    stream: int = 0
    frames: tuple[Frame, ...] = ()
    user_frame: Frame | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    """What one device's allocator did, in order.

    Attributes:
        name: the file's name.
        events: the history, oldest first.
        settings: the allocator's configuration at that time.
        final: the segments after the last event; None in a compact file.
        base_allocated: bytes allocated before the first event, where the file says so.
        base_reserved: bytes reserved before it.
        has_addresses: whether addresses are true ones, or ordinals.
    """

    name: str
    events: tuple[Event, ...]
    settings: AllocatorSettings = field(default_factory=AllocatorSettings)
    final: tuple[SegmentInfo, ...] | None = None
    base_allocated: int | None = None
    base_reserved: int | None = None
    has_addresses: bool = True


def read_recording(path: str | Path, device: int | None = None) -> Recording:
    """Read a snapshot or a compact event file.

    Args:
        path: the file.
        device: the GPU whose history is wanted; default: the first that has one.

    Raises:
        InputError: when the file cannot be read, or is not such a recording.
    """
    path = Path(path)
    data = _contents(path)
    try:
        if data[:1] == b"{":
            return _from_json(path.name, msgspec.json.decode(data))
        if data[:1] == b"\x80":
            return _from_snapshot(path.name, _plain_data(data), device)
    except InputError as error:
        raise InputError(f"{path} is not a usable recording: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        what = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise InputError(
            f"{path} is not a memory recording as PyTorch writes it ({what})."
        ) from None
    raise InputError(f"{path} is neither a memory snapshot (pickle) nor a compact event file.")


def _contents(path: Path) -> bytes:
    """The file's bytes, unpacked if it is gzip, within the size limit."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if data[:2] == b"\x1f\x8b":
            with gzip.open(io.BytesIO(data)) as unpacked:
                data = unpacked.read(MAX_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise InputError(f"{path} is a damaged or truncated gzip file.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from None
    if len(data) > MAX_BYTES:
        raise InputError(f"{path} is larger than {MAX_BYTES >> 20} MiB.")
    return data


class _NoGlobals(pickle.Unpickler):
    """Refuses every class and function; `_check_opcodes` has already done so."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        raise InputError(
            f"the pickle names {module_name}.{global_name}, which plain data never does."
        )


def _plain_data(data: bytes) -> object:
    """The lists, dictionaries, strings and numbers of a pickle."""
    _check_opcodes(data)
    try:
        return _NoGlobals(io.BytesIO(data)).load()
    except (pickle.UnpicklingError, EOFError, MemoryError, OverflowError) as error:
        raise InputError(f"the pickle is damaged or truncated ({error}).") from None


_INT = rb"(?:K.|M..|J....)"
_FIXED = re.compile(  # opcodes whose arguments have a fixed length; a tuple is a pair of integers
    _INT + rb"{2}\x86|" + _INT + rb"|h.|j.{4}|q.|r.{4}|G.{8}|\x8a\x06.{6}|\x95.{8}|\x80."
    rb"|[\]}(Neuas\x88\x89\x94]",
    re.DOTALL,
)
_FIXED_RUN = re.compile(rb"(?:" + _FIXED.pattern + rb")++", re.DOTALL)
_LENGTH_BYTES = {0x8C: 1, 0x58: 4, 0x8D: 8, 0x8A: 1}  # three kinds of string, and LONG1
_STOP = ord(".")


def _check_opcodes(data: bytes) -> None:
    """Allow only opcodes of plain data: no global, no call, no tuple but a pair of integers."""
    at = 0
    while at < len(data):
        run = _FIXED_RUN.match(data, at)
        if run is not None:
            at = run.end()
            continue
        opcode = data[at]
        if opcode == _STOP:
            return
        width = _LENGTH_BYTES.get(opcode)
        if width is None:
            raise InputError(f"the pickle has an opcode ({opcode:#04x}) that plain data never has.")
        at += 1 + width
        at += int.from_bytes(data[at - width : at], "little")
    raise InputError("the pickle is truncated.")


def _from_snapshot(name: str, snapshot: Any, device: int | None) -> Recording:
    """The recording of one device in what `torch.cuda.memory._snapshot` returns."""
    traces = snapshot["device_traces"]
    if device is None:
        device = next((index for index, trace in enumerate(traces) if trace), 0)
    if not 0 <= device < len(traces):
        raise InputError(f"it has no device {device}.")
    settings = snapshot.get("allocator_settings", {})
    segments = [segment for segment in snapshot["segments"] if segment.get("device", 0) == device]
    return Recording(
        name=name,
        events=tuple(_trace_events(traces[device])),
        settings=settings_of_snapshot(settings if isinstance(settings, Mapping) else {}),
        final=tuple(sorted(map(_segment_info, segments), key=lambda info: info.address)),
    )


def _trace_events(trace: Iterable[Any]) -> Iterator[Event]:
    frames: dict[int, Frame] = {}  # snapshots share their frames: by the identity of each
    for entry in trace:
        action = _TRACE_ACTIONS.get(entry["action"])
        if action is None:
            if entry["action"] in _IGNORED_ACTIONS:
                continue
            raise InputError(f"it has an event {str(entry['action'])[:40]!r} that is not known.")
        stack = tuple(_frame(raw, frames) for raw in entry.get("frames", ()))
        yield Event(
            action,
            _number(entry["addr"]),
            _size(entry["size"]),
            _number(entry["stream"]),
            stack,
            next(filter(is_user_frame, stack), None),
        )


def _frame(raw: Any, known: dict[int, Frame]) -> Frame:
    frame = known.get(id(raw))
    if frame is None:
        frame = Frame(str(raw["filename"]), str(raw["name"]), _number(raw["line"]))
        known[id(raw)] = frame
    return frame


def is_user_frame(frame: Frame) -> bool:
    """Whether a frame is Python code outside of installed packages and the standard library."""
    path = frame.filename.replace("\\", "/")
    installed = ("site-packages/", "dist-packages/", "/lib/python3", "<frozen ")
    return path.endswith(".py") and not any(part in path for part in installed)


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
        raise InputError(f"its segment at {raw['address']:#x} does not consist of its blocks.")
    return SegmentInfo(
        address=_number(raw["address"]),
        size=_size(raw["total_size"]),
        stream=_number(raw["stream"]),
        is_small=raw["segment_type"] == "small",
        is_expandable=bool(raw.get("is_expandable", False)),
        blocks=tuple(blocks),
    )


def _from_json(name: str, content: Any) -> Recording:
    """The recording in a compact event file."""
    sites = [_site_frames(site) for site in content.get("sites", ())]
    replayed = content.get("replay", {})
    return Recording(
        name=name,
        events=tuple(_json_event(row, sites) for row in content["events"]),
        settings=settings_of_snapshot(content.get("allocator_settings", {})),
        base_allocated=_size(replayed["base_alloc"]) if "base_alloc" in replayed else None,
        base_reserved=_size(replayed["base_res"]) if "base_res" in replayed else None,
        has_addresses=False,
    )


def _json_event(row: Any, sites: list[tuple[Frame, ...]]) -> Event:
    """`[op, size, ordinal]`, and for an allocation the index of its site."""
    action = _JSON_ACTIONS.get(row[0])
    if action is None:
        raise InputError(f"it has an event {str(row[0])[:40]!r} that is not known.")
    frames = sites[row[3]] if len(row) > 3 else ()
    return Event(action, _number(row[2]), _size(row[1]), 0, frames, frames[-1] if frames else None)


def _site_frames(site: str) -> tuple[Frame, ...]:
    """`train.py:main:16<linear.py:forward:125`: the user's line, then the library's within it."""
    if site == "engine":  # the autograd thread has no Python frames
        return ()
    parts = re.findall(r"(.+?):(.+?):(\d+)(?:<|$)", site)
    return tuple(Frame(file, function, int(line)) for file, function, line in reversed(parts))


def _number(value: object, limit: int = 1 << 64) -> int:
    """A whole number of a sane size."""
    if type(value) is not int or not 0 <= value < limit:
        raise InputError(f"{str(value)[:40]!r} stands where a number should.")
    return value


def _size(value: object) -> int:
    """A number of bytes that some GPU could have."""
    return _number(value, MAX_GPU_BYTES)
