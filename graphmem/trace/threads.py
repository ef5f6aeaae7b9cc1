"""Watch the threads that a program starts like its main thread.

Dispatch modes and hooks for saved tensors belong to a thread (`PythonTorchFunctionTLS`,
`SavedTensorDefaultHooks`: both `thread_local`), and so does the counter by which autograd numbers
its nodes (aten/src/ATen/SequenceNumber.cpp). Every thread that starts gets the modes and hooks, and
a counter that continues where the others are, so that a number identifies one node.

Threads that others start meanwhile, such as those of a server that analyses, are left alone.

(1) So is a thread that outlives the program.
(2) A worker of an existing pool is watched while it does what the program submitted.

Not covered: other threads that existed before; and the engine's order of simultaneously ready nodes
from different threads, whose counters are separate on a card.
"""

from __future__ import annotations

import concurrent.futures.thread as pools
import ctypes
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any

import torch

from graphmem.caller.turns import is_watched, watched_thread
from graphmem.virtual_device.patching import Replacement

_ROOM = 64
"""Numbers reserved for nodes that the thread of the newest node may have made unseen."""
_GET_AND_INCREMENT = "_ZN2at15sequence_number17get_and_incrementEv"


class NodeNumbers:
    """Keeps threads from giving the same number to two nodes."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._newest = 0

    def go_on(self) -> None:
        """Advance this thread's counter before it makes nodes; note its newest one after."""
        thread = threading.get_ident()
        newest = torch._C._autograd._get_sequence_nr()
        if thread != self._thread and newest <= self._newest:
            newest = _count_on(newest, self._newest + _ROOM)
        self._thread = thread
        self._newest = max(self._newest, newest)


def _count_on(number: int, target: int) -> int:
    count = _counter()
    if count is not None:
        for _ in range(target - number):
            count()
    return torch._C._autograd._get_sequence_nr()


@cache
def _counter() -> Callable[[], int] | None:
    """Autograd's own function that counts in this thread."""
    folder = Path(torch.__file__).parent / "lib"
    for library in folder.glob("libtorch_cpu.*"):
        try:
            function: Any = getattr(ctypes.PyDLL(str(library)), _GET_AND_INCREMENT)
        except (OSError, AttributeError):
            continue
        function.restype = ctypes.c_uint64
        return function  # type: ignore[no-any-return]
    return None


def replacements(watching: Callable[[], AbstractContextManager[None]]) -> list[Replacement]:
    """The attributes to replace so that threads are watched.

    Args:
        watching: watches the thread that enters it.
    """
    start, begin = threading.Thread.start, threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
    submit, work = pools._WorkItem.__init__, pools._WorkItem.run
    started: set[int] = set()
    submitted: weakref.WeakSet[Any] = weakref.WeakSet()

    def start_and_note(thread: threading.Thread) -> None:
        if is_watched():
            started.add(id(thread))
        start(thread)

    def begin_watched(thread: threading.Thread) -> None:
        if id(thread) not in started:
            begin(thread)
            return
        started.discard(id(thread))
        with watched_thread(), watching():
            begin(thread)

    def submit_and_note(item: Any, *args: Any) -> None:
        submit(item, *args)
        if is_watched():
            submitted.add(item)

    def work_watched(item: Any, *context: Any) -> None:  # a worker's, since Python 3.14
        if is_watched() or item not in submitted:
            work(item, *context)
            return
        with watched_thread(), watching():
            work(item, *context)

    return [
        (threading.Thread, "start", start_and_note),
        (threading.Thread, "_bootstrap_inner", begin_watched),
        (pools._WorkItem, "__init__", submit_and_note),
        (pools._WorkItem, "run", work_watched),
    ]
