"""The pace of Python's cycle collector: what graphmem makes does not count.

The collector looks at young objects once so many more were made than deleted (`_PyObject_GC_Link`
in CPython's Modules/gcmodule.c), and at all of them once those that survived are a quarter of the
old ones (`gc_collect_generations`). A step of training on a card hardly ever gets there, because it
deletes what it makes. To record an operation leaves several objects, with which the collector
would come every thirty operations. So:

(1) While an operation is recorded, the collector waits; afterwards the threshold is raised by as
    many objects as are left.
(2) A tensor of the virtual card is several objects, which are deleted while the program runs.
    Tensors do not count, neither when they are made nor when they die.
(3) All objects are looked at only if those of the program that survived are a quarter of its old
    ones. Python 3.14, which has no such rule, decides itself.

Not covered: objects that graphmem makes elsewhere, such as when modules are called.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from graphmem.trace.recorder import Recorder
from graphmem.virtual_device.patching import replaced

_get_count, _get_threshold, _set_threshold = gc.get_count, gc.get_threshold, gc.set_threshold
_OF_A_TENSOR = 6
"""Objects that are deleted with a tensor: itself, its dictionary, its memory, references to it."""
_NEVER = 2**31 - 1


def _old_objects() -> int:
    return len(gc.get_objects()) + gc.get_freeze_count()


class _OldObjects:
    """Whether the program's objects that survived call for a look at all of them (clause 3)."""

    def __init__(self, old: int) -> None:
        self._old = old
        self._survived = 0
        self._young = 0  # objects, when a collection of young ones begins
        self._own = 0  # of graphmem's, those that no such collection has seen

    def collected(self, phase: str, info: dict[str, int], own: int) -> None:
        """Note a collection, before which `own` objects had been left that do not count."""
        generation = info["generation"]
        if phase == "start":
            self._own += own
            if generation == 1:
                self._young = len(gc.get_objects(0)) + len(gc.get_objects(1))
        elif generation == 1:
            self._survived += max(0, self._young - info["collected"] - self._own)
            self._own = 0
        elif generation == 2:
            self._old += self._survived - info["collected"]
            self._survived = self._own = 0

    def are_due(self) -> bool:
        return sys.version_info >= (3, 14) or self._survived >= self._old / 4


class CollectorPace:
    """Lets the collector run as often as the program's own objects ask for."""

    def __init__(self, recorder: Recorder) -> None:
        """Change nothing yet.

        Args:
            recorder: knows which storages are alive.
        """
        self._refs = recorder.refs
        self._thresholds: tuple[int, ...] = (0, 0, 0)  # the program's, once installed
        self._old = _OldObjects(0)
        self._of_program = 0  # objects that it has made since the last collection
        self._made = 0  # all objects made since then, when the last operation was recorded
        self._alive = 0  # storages at that time
        self._is_recording = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Keep the pace while the context is open; the program sees its own counts."""
        self._thresholds, self._old = _get_threshold(), _OldObjects(_old_objects())
        own = [(gc, each.__name__, each) for each in (self.get_count, self.get_threshold)]
        gc.callbacks.append(self._collected)
        try:
            with replaced([*own, (gc, "set_threshold", self.set_threshold)]):
                yield
        finally:
            gc.callbacks.remove(self._collected)
            _set_threshold(*self._thresholds)
            self._thresholds = (0, 0, 0)

    def get_count(self) -> tuple[int, ...]:
        """Stand in for `gc.get_count`."""
        made, *older = _get_count()
        return max(0, made - self._made + self._of_program), *older

    def get_threshold(self) -> tuple[int, ...]:
        """Stand in for `gc.get_threshold`."""
        return self._thresholds

    def set_threshold(self, *thresholds: int) -> None:
        """Stand in for `gc.set_threshold`."""
        _set_threshold(*self._thresholds)  # those that are not given stay
        _set_threshold(*thresholds)
        self._thresholds = _get_threshold()
        self._adapt()

    def wait(self) -> bool:
        """Let the collector wait while an operation is recorded; false if it would not run."""
        if self._is_recording or not self._thresholds[0]:
            return False
        self._is_recording = True
        self._count_program()
        _set_threshold(0)
        return True

    def go_on(self) -> None:
        """Let the collector go on after `wait`, and do not count what is left."""
        self._is_recording = False
        self._alive = len(self._refs)
        self._made, *_ = _get_count()
        self._adapt()

    def _count_program(self) -> None:
        """Count what the program has made since the last operation, but for tensors that died."""
        made, *_ = _get_count()
        if made:  # CPython counts no further down
            died = max(0, self._alive - len(self._refs))
            more = made - self._made + died * _OF_A_TENSOR
            self._of_program = max(0, self._of_program + more)

    def _adapt(self) -> None:
        young, middle, old = self._thresholds
        if young and not self._is_recording:
            young = max(1, young + self._made - self._of_program)
            _set_threshold(young, middle, old if self._old.are_due() else _NEVER)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        self._old.collected(phase, info, self._made - self._of_program)
        if phase == "stop":
            self._of_program = self._made = 0
            self._adapt()
