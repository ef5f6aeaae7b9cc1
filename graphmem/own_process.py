"""The process of a command: nobody but graphmem runs in it, so what costs time can be put off.

(1) Python's cycle collector is off: importing PyTorch makes a million objects, and the collector
would visit them again and again without finding anything. What one analysis leaves is collected
before the next (`graphmem/caller/belongings.py`).
(2) Threads that wait for work sleep (OMP_WAIT_POLICY of the OpenMP specification): an analysis
computes small values now and then, after each of which threads would spin for milliseconds.

Not covered: `graphmem run`, whose process is the script's.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

_WAITING = "OMP_WAIT_POLICY"

_open = 0


@contextmanager
def own_process() -> Iterator[None]:
    """While the context is open, the process is graphmem's own."""
    global _open  # noqa: PLW0603
    collects, waits = gc.isenabled(), os.environ.get(_WAITING)
    gc.disable()
    os.environ.setdefault(_WAITING, "passive")
    _open += 1
    try:
        yield
    finally:
        _open -= 1
        if waits is None:
            os.environ.pop(_WAITING, None)
        if collects:
            gc.enable()


def is_own_process() -> bool:
    """Whether this process only runs a command of graphmem."""
    return _open > 0
