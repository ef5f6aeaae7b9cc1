"""Treat SIGTERM like Ctrl-C, so that temporary files are removed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SAME = 0.5
"""Within so many seconds two signals are one."""


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM."""


@contextmanager
def orderly_termination() -> Iterator[None]:
    """Have SIGTERM raise `Terminated`, unless the program handles it already.

    A script's `except BaseException` may swallow that, so a second SIGTERM ends the process, unless
    it is the same: `timeout` sends one to its child and one to its group (coreutils' timeout.c).
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    owner, received = os.getpid(), list[float]()

    def end(number: int, _frame: FrameType | None) -> None:
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
