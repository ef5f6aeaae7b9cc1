"""The pace of Python's cycle collector: what graphmem makes does not count.

The collector looks at young objects once so many more were made than deleted
(`gc.get_threshold()`; CPython's Modules/gcmodule.c, `_PyObject_GC_Link`). A step of training on a
card hardly ever gets there, because it deletes what it makes. To record an operation leaves some
twenty objects, with which the collector would come every thirty operations. So:

(1) While an operation is recorded, the collector waits; afterwards the threshold is raised by as
    many objects as are left.
(2) A tensor of the virtual card is several objects, which are deleted while the program runs.
    Tensors do not count, neither when they are made nor when they die.

Not covered: the collector looks at all objects if the young ones that survived are a quarter of
them (`long_lived_pending`), and graphmem's count there.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from graphmem.trace.recorder import Recorder
from graphmem.virtual_device.patching import replaced

_get_count, _get_threshold, _set_threshold = gc.get_count, gc.get_threshold, gc.set_threshold
_OF_A_TENSOR = 6
"""Objects that are deleted with a tensor: itself, its dictionary, its memory, references to it."""


class CollectorPace:
    """Lets the collector run as often as the program's own objects ask for."""

    def __init__(self, recorder: Recorder) -> None:
        """Change nothing yet.

        Args:
            recorder: knows which storages are alive.
        """
        self._refs = recorder.refs
        self._threshold, *_ = _get_threshold()  # the program's
        self._of_program = 0  # objects that it has made since the last collection
        self._made = 0  # all objects made since then, when the last operation was recorded
        self._alive = 0  # storages at that time
        self._is_recording = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Keep the pace while the context is open; the program sees its own counts."""
        self._threshold, *_ = _get_threshold()
        own = [(gc, each.__name__, each) for each in (self.get_count, self.get_threshold)]
        gc.callbacks.append(self._collected)
        try:
            with replaced([*own, (gc, "set_threshold", self.set_threshold)]):
                yield
        finally:
            gc.callbacks.remove(self._collected)
            _set_threshold(self._threshold)

    def get_count(self) -> tuple[int, ...]:
        """Stand in for `gc.get_count`."""
        made, *older = _get_count()
        return max(0, made - self._made + self._of_program), *older

    def get_threshold(self) -> tuple[int, ...]:
        """Stand in for `gc.get_threshold`."""
        return self._threshold, *_get_threshold()[1:]

    def set_threshold(self, threshold: int, *older: int) -> None:
        """Stand in for `gc.set_threshold`."""
        _set_threshold(threshold, *older)
        self._threshold = threshold
        self._raise_threshold()

    def wait(self) -> bool:
        """Let the collector wait while an operation is recorded; false if it does already."""
        if self._is_recording or not self._threshold:
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
        self._raise_threshold()

    def _count_program(self) -> None:
        """Count what the program has made since the last operation, but for tensors that died."""
        made, *_ = _get_count()
        if made:  # CPython counts no further down
            died = max(0, self._alive - len(self._refs))
            more = made - self._made + died * _OF_A_TENSOR
            self._of_program = max(0, self._of_program + more)

    def _raise_threshold(self) -> None:
        if self._threshold and not self._is_recording:
            _set_threshold(max(1, self._threshold + self._made - self._of_program))

    def _collected(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "stop":
            self._of_program = self._made = 0
            self._raise_threshold()
