"""The dispatch mode of a trace whose memory is followed: a captured graph may not wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem.trace.deterministic import DeterministicMode
from graphmem.virtual_device.device_memory import DeviceMemory

aten = torch.ops.aten

_WAITS = (aten._local_scalar_dense.default, aten.nonzero.default)

Handler = Callable[[Any, Any, Any, dict[str, Any]], Any]


class FollowedMode(DeterministicMode):
    """Records operations on the device, and refuses to wait for one that is captured."""

    def __init__(self, memory: DeviceMemory, *watchers: Any) -> None:
        super().__init__(*watchers)
        self._memory = memory
        for func in (*_WAITS, aten._to_copy.default):
            self._handlers[func] = self._waiting(self._handlers[func])

    def _waiting(self, handler: Handler) -> Handler:
        """Note that the host waits for an operation; while a graph is captured, refuse."""

        def handle(func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
            is_on_card = isinstance(args[0], FakeTensor) and args[0].fake_device.type == "cuda"
            if is_on_card and (func in _WAITS or _goes_to_host(kwargs)):
                self._memory.captures.check_idle()
                self._memory.host_waits(self._memory.mark(self._memory.current_stream))
            return handler(func, types, args, kwargs)

        return handle


def _goes_to_host(kwargs: dict[str, Any]) -> bool:
    device = kwargs.get("device")
    return device is not None and torch.device(device).type == "cpu"
