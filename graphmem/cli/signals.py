"""Treat SIGTERM like Ctrl-C, so that temporary files are removed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM."""


@contextmanager
def orderly_termination() -> Iterator[None]:
    """Have SIGTERM raise `Terminated`, unless the program handles it already.

    A script's `except BaseException` may swallow that, so a second SIGTERM ends the process.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    owner = os.getpid()

    def end(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() == owner:
            raise Terminated
        os.kill(os.getpid(), number)  # a forked child dies as it would without graphmem

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
