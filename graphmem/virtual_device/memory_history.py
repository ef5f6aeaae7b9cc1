"""The allocator's events with their stacks: `torch.cuda.memory._record_memory_history`.

Rules of `recordHistory`, `record_trace` and `maybeGatherContext` in
c10/cuda/CUDACachingAllocator.cpp, and of torch/csrc/cuda/memory_snapshot.cpp:

(1) `context` says what stacks are recorded for: "state", for allocations, shown at the blocks of a
snapshot; "alloc", also at the events of the history; "all", at frees as well.
(2) A free without a stack shows that of its allocation, and the end of a segment that of its
beginning.
(3) With `enabled="state"` the history keeps only the latest event.

A stack is the program's, innermost line first. Lines of graphmem and of the fake tensor machinery
are left out, since a card would not show them. Allocations of a backward pass show the call of
`backward`; on a card another thread makes them, and PyTorch shows no lines.

Not covered: C++ lines (`stacks="all"` counts as "python"), annotations of `record_function`.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

from graphmem.frames import Origin, origin_of

_TORCH = Path(torch.__file__).parent
_MACHINERY = tuple(
    str(_TORCH / name)
    for name in (
        "_subclasses",
        "_library",
        "_ops.py",
        "_meta_registrations.py",
        "_prims",
        "_prims_common",
        "_refs",
        "_decomp",
        "utils/_python_dispatch.py",
        "utils/_stats.py",
        "utils/weak.py",
    )
)
_LEVELS = {None: 0, "state": 1, "alloc": 2, "all": 3}


class StackFrame(NamedTuple):
    """One line of a Python stack."""

    filename: str
    line: int
    name: str


Stack = tuple[StackFrame, ...]


def stack_here() -> Stack:
    """The lines of the program that led here, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    stack = []
    while frame is not None:
        code = frame.f_code
        if not _is_machinery(code.co_filename):
            stack.append(StackFrame(code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    return tuple(stack)


def _is_machinery(file: str) -> bool:
    return origin_of(file) is Origin.GRAPHMEM or file.startswith(_MACHINERY)


class MemoryHistory:
    """The recorded events, and the stacks of blocks and segments on the device.

    Attributes:
        is_recorded: whether events are recorded.
        metadata: text that the program attaches to every event.
    """

    def __init__(self) -> None:
        self.is_recorded = False
        self.metadata = ""
        self._level = 0
        self._entries: deque[tuple[dict[str, Any], Stack | None]] = deque(maxlen=1)
        self._cause: Stack | None = None
        self._blocks: dict[int, Stack] = {}
        self._segments: dict[int, Stack] = {}
        self._skipped: frozenset[str] = frozenset()

    def record(
        self,
        enabled: str | None,
        context: str | None,
        max_entries: int,
        *,
        clear: bool = False,
        skipped: Iterable[str] = (),
    ) -> None:
        """Start, change or stop recording.

        Args:
            enabled: "all" keeps `max_entries` events, "state" the latest one, None stops.
            context: what stacks are recorded for, clause (1).
            max_entries: how many events to keep.
            clear: drop what was recorded so far.
            skipped: actions not to record.

        Raises:
            RuntimeError: `enabled` or `context` is invalid, with PyTorch's message.
        """
        if enabled not in (None, "state", "all"):
            raise RuntimeError("expected state to be 'state', 'all', or None")
        if context not in _LEVELS:
            raise RuntimeError("expected context to be 'state', 'alloc', 'all', or None")
        self.is_recorded = enabled is not None
        self._level = _LEVELS[context] if enabled else 0
        self._skipped = frozenset(skipped)
        kept = () if clear or not enabled else self._entries
        room = max(1, max_entries if enabled == "all" else 1)
        self._entries = deque(kept, maxlen=min(room, sys.maxsize))

    @property
    def takes_stacks_of_frees(self) -> bool:
        """Whether the stacks of frees are recorded."""
        return self._level >= _LEVELS["all"]

    def stacks_here(self) -> tuple[Stack | None, Stack | None]:
        """The stack here for an allocation, and for a free; None where it is not recorded."""
        if not self._level:
            return None, None
        stack = stack_here()
        return stack, stack if self.takes_stacks_of_frees else None

    @contextmanager
    def caused_by(self, stack: Stack | None) -> Iterator[None]:
        """Attribute the events of this context to a stack."""
        before, self._cause = self._cause, stack
        try:
            yield
        finally:
            self._cause = before

    def note(self, action: str, address: int, size: int, stream: int) -> None:
        """Record one event of the allocator (`record_trace`)."""
        stack = self._stack_at(action, address)
        if not self.is_recorded or action in self._skipped:
            return
        entry = {
            "action": action,
            "device_free" if action == "oom" else "addr": address,
            "size": size,
            "stream": stream,
            "time_us": time.time_ns() // 1000,
            "compile_context": "N/A",
            "user_metadata": self.metadata,
            "pool_id": (0, 0),
        }
        self._entries.append((entry, stack if self._level >= _LEVELS["alloc"] else None))

    def _stack_at(self, action: str, address: int) -> Stack | None:
        """The stack of an event, clause (2)."""
        cause, first = self._cause, None
        if action == "alloc":
            _keep(self._blocks, address, cause)
        elif action in ("segment_alloc", "segment_map"):
            _keep(self._segments, address, cause)
        elif action == "free_requested":
            first = self._blocks.get(address)
        elif action == "free_completed":
            first = self._blocks.pop(address, None)
        elif action in ("segment_free", "segment_unmap"):
            first = self._segments.pop(address, None)
        return first if cause is None else cause

    def forget_segment(self, address: int) -> None:
        """Drop a segment's stack: its first block was split off the rest.

        The stack stays with the rest, which never becomes the first block again
        (`alloc_found_block`, `try_merge_blocks`), so it is never shown again.
        """
        self._segments.pop(address, None)

    def entries(self) -> list[dict[str, Any]]:
        """The events, oldest first."""
        return [
            entry if stack is None else {**entry, "frames": frames_of(stack)}
            for entry, stack in self._entries
        ]

    def frames_at(self, address: int) -> list[dict[str, Any]]:
        """The stack that allocated a block, empty if none was recorded."""
        return frames_of(self._blocks.get(address, ()))

    def frames_of_segment(self, address: int) -> list[dict[str, Any]]:
        """The stack that opened a segment, empty if none was recorded."""
        return frames_of(self._segments.get(address, ()))

    def traceback_of(self, address: int) -> list[dict[str, Any]] | None:
        """The stack that allocated a block, None if none was recorded."""
        stack = self._blocks.get(address)
        return None if stack is None else frames_of(stack)


def frames_of(stack: Stack) -> list[dict[str, Any]]:
    """Convert a stack to a snapshot's form."""
    return [frame._asdict() for frame in stack]


def _keep(stacks: dict[int, Stack], address: int, stack: Stack | None) -> None:
    if stack is None:
        stacks.pop(address, None)
    else:
        stacks[address] = stack
