"""The process of a command: nobody but graphmem runs in it, so what costs time can be put off.

(1) Python's cycle collector is off: importing PyTorch makes half a million objects, and the
collector would visit them again and again without finding anything. What one analysis leaves is
collected before the next (`graphmem/caller/belongings.py`).
(2) Threads that wait for work sleep (OMP_WAIT_POLICY of the OpenMP specification): an analysis
computes small values now and then, after each of which threads would spin for milliseconds.

The process of `graphmem run` is the script's while that runs. Before and after, the collector is
off; what was imported before is set aside, so no collection visits it that the script asks for.
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
    waits = os.environ.get(_WAITING)
    os.environ.setdefault(_WAITING, "passive")
    _open += 1
    try:
        with without_collector():
            yield
    finally:
        _open -= 1
        if waits is None:
            os.environ.pop(_WAITING, None)


@contextmanager
def without_collector() -> Iterator[None]:
    """Keep Python's cycle collector from running while the context is open."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def script_process() -> Iterator[None]:
    """While the context is open, the process is a script's, but for what exists already."""
    was_enabled, was_set_aside = gc.isenabled(), gc.get_freeze_count() > 0
    gc.freeze()
    gc.enable()
    try:
        yield
    finally:
        if not was_enabled:
            gc.disable()
        if not was_set_aside:
            gc.unfreeze()


def is_own_process() -> bool:
    """Whether this process only runs a command of graphmem."""
    return _open > 0
