"""Analyse one program at a time, because torch is patched for the whole process.

Threads that request an analysis take turns. A request from inside a program that is being analysed,
including its threads, would wait for itself and is refused.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from graphmem.errors import InputError

_lock = threading.Lock()
_inside: set[int] = set()


class NestedAnalysisError(InputError):
    """An analysis is requested inside another one."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} was requested inside an analysis or on a virtual GPU",
            hint="call it before or after: outside build(), the step, and the `with "
            "graphmem.virtual_gpu(…)` block or the script of `graphmem run`",
        )


def is_watched() -> bool:
    """Whether this thread runs a program that is being analysed."""
    return threading.get_ident() in _inside


@contextmanager
def turn(what: str) -> Iterator[None]:
    """Wait until no other thread's program is being analysed.

    Args:
        what: what is requested, with its article.

    Raises:
        InputError: this thread's own program is being analysed.
    """
    if is_watched():
        raise NestedAnalysisError(what)
    with _lock, watched_thread():
        yield


@contextmanager
def watched_thread() -> Iterator[None]:
    """Count this thread to the program that is being analysed."""
    ident = threading.get_ident()
    _inside.add(ident)
    try:
        yield
    finally:
        _inside.discard(ident)


def interrupting() -> signal.Signals:
    """The signal that can interrupt the main thread.

    A shell's script that starts a command in the background has it ignore Ctrl-C.
    """
    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return signal.SIGURG if is_ignored else signal.SIGINT


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block, so that nothing is left half done.

    Where Ctrl-C is ignored, a stopped program is interrupted by another signal (`interrupting`).
    """
    number = interrupting()
    before = signal.getsignal(number)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    caught: list[tuple[int, FrameType | None]] = []
    signal.signal(number, lambda number, frame: caught.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(number, before)
    if caught:
        before(*caught[0])
