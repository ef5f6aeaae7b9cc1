"""When Python's cycle collector runs, and whether the program asked it to.

(1) Ticks tell what a collection frees: storages that die between its beginning and its end.
(2) A collection that the program asks for, by `gc.collect()` for all generations, comes at the same
    place on a card. Any other comes when enough objects exist, graphmem's own among them; so may
    what `gc.collect(0)` frees, because earlier collections decide which objects are still young.
(3) With the collector switched off, only the program frees cycles: nothing could come sooner, so
    what such a collection frees is not noted.
(4) If a collection that nobody asked for freed storages, the end of the program is one more, which
    finds the cycles that were still waiting for theirs.

Not covered: garbage that `gc.freeze()` puts away, which a later `gc.collect()` leaves alone.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from graphmem.cycle_collector import Collection, freed_by_chance
from graphmem.trace.recorder import Recorder
from graphmem.virtual_device.patching import replaced

_OLDEST = 2


class CollectorWatch:
    """Notes collections in the step graph."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._asking: int | None = None  # the thread that is inside `gc.collect()`
        self._start = 0
        self._is_asked = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Watch the collector while the context is open."""
        collect = gc.collect

        def ask(*args: Any, **kwargs: Any) -> int:
            self._asking = threading.get_ident()
            try:
                return collect(*args, **kwargs)
            finally:
                self._asking = None

        gc.callbacks.append(self._note)
        try:
            with replaced([(gc, "collect", ask)]):
                yield
        finally:
            gc.callbacks.remove(self._note)

    def finish(self) -> None:
        """Find the cycles that are left at the end of the program (clause 4)."""
        if gc.isenabled() and freed_by_chance(self._recorder.graph):
            gc.collect()

    def _note(self, phase: str, info: dict[str, int]) -> None:
        tick = self._recorder.tick
        if phase == "start":
            self._start = tick
            self._is_asked = self._asking == threading.get_ident()
            return
        is_fixed = self._is_asked and not gc.isenabled()
        start = tick if is_fixed else self._start
        is_whole = self._is_asked and info["generation"] == _OLDEST
        if is_whole or start < tick:
            self._recorder.graph.collections.append(Collection(start, tick, is_whole))
