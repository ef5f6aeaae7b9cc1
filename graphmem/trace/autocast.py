"""Whether autocast is on at this moment of the trace.

`torch.is_autocast_enabled` answers False inside of the casts that autocast makes, because it
excludes its own dispatch key there (aten/src/ATen/autocast_mode.h, `cached_cast`). So the contexts
themselves are followed. The outermost clears the cache of weights when it ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.amp.autocast_mode import autocast

from graphmem.graph import AutocastState
from graphmem.trace.recorder import Recorder
from graphmem.virtual_gpu.patching import replaced


class AutocastRegions:
    """Follows `torch.autocast` for the kind of device that is traced."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._device_type = recorder.device.type
        self._outer: list[bool] = []
        self.enabled = False

    @property
    def state(self) -> AutocastState:
        """What autocast has to do with the operation that runs now."""
        if not self.enabled:
            return AutocastState.OFF
        passed = torch.is_autocast_enabled(self._device_type)
        return AutocastState.PASSED if passed else AutocastState.APPLIED

    @contextmanager
    def following(self) -> Iterator[None]:
        """Know of every region that is entered while the context is open."""
        enter, leave = autocast.__enter__, autocast.__exit__

        def enter_region(region: Any) -> Any:
            entered = enter(region)
            self._outer.append(self.enabled)
            self.enabled = torch.is_autocast_enabled(self._device_type)
            return entered

        def leave_region(region: Any, *exception: Any) -> Any:
            self.enabled = self._outer.pop()
            with self._recorder.releasing_in_order():
                return leave(region, *exception)

        with replaced(
            [(autocast, "__enter__", enter_region), (autocast, "__exit__", leave_region)]
        ):
            yield
