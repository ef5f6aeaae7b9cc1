"""Leave the process of a command without what Python does at the end but a command can do without.

Python waits for threads before it ends. One of a program that was stopped may wait for what will
never come, as for the queue of another thread. Python also frees all modules, which takes 0.2 s,
and cannot free those that graphmem has set aside (`graphmem.caller.clean_turn`): libraries bound by
nanobind, as Triton 3.9 is, then print that they leak.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from typing import NoReturn

from graphmem.files import flush


def leave(exit_code: int) -> NoReturn:
    """End the process as Python does, but do not wait for threads, nor free what is set aside."""
    others = (each for each in threading.enumerate() if each is not threading.main_thread())
    if all(each.daemon for each in others) and not gc.get_freeze_count():
        sys.exit(exit_code)
    atexit._run_exitfuncs()
    flushed = _flush()
    os._exit(exit_code or flushed)


_CANNOT_FLUSH = 120
"""Python's exit code for it (Modules/main.c, `Py_RunMain`)."""


def _flush() -> int:
    try:
        for stream in (sys.stdout, sys.stderr):
            flush(stream)
    except OSError:
        return _CANNOT_FLUSH
    return 0
