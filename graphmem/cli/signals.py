"""Treat SIGTERM and SIGHUP like Ctrl-C, so that files are put back or removed, and lose none."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDINGS = (signal.SIGTERM, signal.SIGHUP)
_SAME = 0.5
"""Within so many seconds two signals are one."""
_LATER = 0.002
"""Seconds after which a signal is sent again."""


class Terminated(KeyboardInterrupt):
    """The process received a signal that asks it to end."""


@contextmanager
def orderly_interruption() -> Iterator[None]:
    """Have Ctrl-C raise `KeyboardInterrupt` in the cycle collector's callbacks, too.

    Python ignores what is raised in such a callback (`gc.callbacks`), as graphmem has one, so a
    signal that arrives there is sent again.

    `asyncio.run` handles Ctrl-C if Python's own function would (`Runner.run`), so that is replaced
    as well.
    """
    default = signal.default_int_handler
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not default:
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        if _is_in_collector(frame):
            _send_later(number)
        else:
            default(number, frame)

    signal.signal(signal.SIGINT, interrupt)
    signal.default_int_handler = interrupt  # type: ignore[assignment]
    try:
        yield
    finally:
        signal.default_int_handler = default
        if signal.getsignal(signal.SIGINT) is interrupt:
            signal.signal(signal.SIGINT, default)


@contextmanager
def orderly_termination() -> Iterator[None]:
    """Have SIGTERM and SIGHUP raise `Terminated`, unless the program handles or ignores them.

    In the cycle collector's callbacks they are sent again, as Ctrl-C is.

    A script's `except BaseException` may swallow that, so a second signal ends the process, unless
    it is the same: `timeout` sends one to its child and one to its group (coreutils' timeout.c).
    That group has the workers of data loaders, whose end is no error then, as it would be to the
    handler that PyTorch sets (torch/utils/data/_utils/signal_handling.py).
    """
    is_main = threading.current_thread() is threading.main_thread()
    unhandled = [each for each in _ENDINGS if signal.getsignal(each) is signal.SIG_DFL]
    if not is_main or not unhandled:
        yield
        return
    owner, received = os.getpid(), list[float]()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() == owner and _is_in_collector(frame):
            _send_later(number)
            return
        received.append(time.monotonic())
        if os.getpid() == owner and len(received) == 1:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            raise Terminated
        if os.getpid() != owner or received[-1] - received[0] > _SAME:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)  # a forked child dies as it would without graphmem

    for each in unhandled:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in unhandled:
            if signal.getsignal(each) is end:
                signal.signal(each, signal.SIG_DFL)


def _is_in_collector(frame: FrameType | None) -> bool:
    functions = [getattr(each, "__func__", each) for each in gc.callbacks]
    codes = {getattr(each, "__code__", None) for each in functions}
    while frame is not None and frame.f_code not in codes:
        frame = frame.f_back
    return frame is not None


def _send_later(number: int) -> None:
    timer = threading.Timer(_LATER, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()
