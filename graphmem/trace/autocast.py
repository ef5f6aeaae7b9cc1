"""Whether autocast is currently on.

`torch.is_autocast_enabled` returns False inside the casts that autocast makes, because autocast
excludes its own dispatch key there (aten/src/ATen/autocast_mode.h, `cached_cast`). So the contexts
themselves are tracked. The outermost one clears the weight cache when it exits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.amp.autocast_mode import autocast

from graphmem.op_states import AutocastState
from graphmem.trace.recorder import Recorder
from graphmem.virtual_device.patching import Method, replaced

_ASKING = ("to", "type", "type_as", "float", "double", "half", "bfloat16", "cpu", "cuda")


class AutocastRegions(threading.local):
    """Tracks `torch.autocast` regions for the traced device type, separately in each thread."""

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self._outer: list[bool] = []
        self._asked_for = 0
        self._entered: list[Any] = []
        self.enabled = False

    def state_of(self, operation: Any) -> AutocastState:
        """How autocast is involved in an operation that runs now.

        A copy to another dtype that no method call of the program requested is autocast's.
        """
        if not self.enabled:
            return AutocastState.OFF
        is_cast = operation is torch.ops.aten._to_copy.default and not self._asked_for
        return AutocastState.CAST if is_cast else AutocastState.ON

    def _asking(self, name: str) -> Any:
        """Wrap a tensor method with which a program requests another dtype or device."""
        method = getattr(torch.Tensor, name)

        def ask(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self._asked_for += 1
            try:
                return method(tensor, *args, **kwargs)
            finally:
                self._asked_for -= 1

        return Method(method, ask)

    @contextmanager
    def following(self, recorder: Recorder) -> Iterator[None]:
        """Track every region entered while the context is open.

        Regions that the program never exits are exited with it, because they are thread state. So
        is this object, which must not hold the recorder: it would be freed a collection later.
        """
        enter, leave = autocast.__enter__, autocast.__exit__

        def enter_region(region: Any) -> Any:
            entered = enter(region)  # type: ignore[no-untyped-call]
            self._entered.append(region)
            self._outer.append(self.enabled)
            self.enabled = torch.is_autocast_enabled(self._device_type)
            return entered

        def leave_region(region: Any, *exception: Any) -> Any:
            self.enabled = self._outer.pop()
            self._entered.pop()
            with recorder.releasing_in_order():
                return leave(region, *exception)

        replacements = [
            (autocast, "__enter__", enter_region),
            (autocast, "__exit__", leave_region),
            *((torch.Tensor, name, self._asking(name)) for name in _ASKING),
        ]
        try:
            with replaced(replacements):
                yield
        finally:
            for region in reversed(self._entered):
                leave(region, None, None, None)
