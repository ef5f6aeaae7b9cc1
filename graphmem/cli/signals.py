"""Treat SIGTERM like Ctrl-C, so that temporary files are removed."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SAME = 0.5
"""Within so many seconds two signals are one."""
_LATER = 0.05
"""Seconds after which a signal is sent again."""


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM."""


@contextmanager
def orderly_termination() -> Iterator[None]:
    """Have SIGTERM raise `Terminated`, unless the program handles it already.

    Python ignores what is raised in a callback of its cycle collector (`gc.callbacks`), as graphmem
    has one, so a signal that arrives there is sent again.

    A script's `except BaseException` may swallow that, so a second SIGTERM ends the process, unless
    it is the same: `timeout` sends one to its child and one to its group (coreutils' timeout.c).
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    owner, received = os.getpid(), list[float]()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() == owner and _is_in_collector(frame):
            _send_later(number)
            return
        received.append(time.monotonic())
        if os.getpid() == owner and len(received) == 1:
            raise Terminated
        if os.getpid() != owner or received[-1] - received[0] > _SAME:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)  # a forked child dies as it would without graphmem

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


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
