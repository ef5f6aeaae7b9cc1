"""The dispatch mode of a trace whose memory is followed: streams, captures, overwritten outputs."""

from __future__ import annotations

from typing import Any

import torch

from graphmem.graph import Op
from graphmem.online import overwritten
from graphmem.trace.data_dependent import DataDependentMode
from graphmem.trace.operands import tensors_of
from graphmem.virtual_device.device_memory import DeviceMemory
from graphmem.virtual_device.node_streams import NodeStreams

aten = torch.ops.aten

_WAITS = frozenset({aten._local_scalar_dense.default, aten.nonzero.default})


class FollowedMode(DataDependentMode):
    """Records operations on the device, with the stream of each.

    Attributes:
        streams: knows the stream of each operation.
    """

    def __init__(self, memory: DeviceMemory, *watchers: Any) -> None:
        super().__init__(*watchers)
        self.streams = NodeStreams(memory)
        self._captures = memory.captures  # during one the host may not wait for the card

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if self._recorder.overwritten:
            overwritten.check(self._recorder, func, tensors_of((args, kwargs)))
        if func in _WAITS or (func is aten._to_copy.default and _goes_to_host(kwargs)):
            self._captures.check_idle()
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _record(self, *args: Any) -> Op:
        op = super()._record(*args)
        self.streams.note(op)
        return op


def _goes_to_host(kwargs: dict[str, Any] | None) -> bool:
    device = (kwargs or {}).get("device")
    return device is not None and torch.device(device).type == "cpu"
