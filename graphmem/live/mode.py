"""The dispatch mode of a live run: the trace's own, with the CPU real and every value answered."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem.graph import Op
from graphmem.live.sizes import SizesFromData
from graphmem.live.values import Values
from graphmem.virtual_gpu.node_streams import NodeStreams

aten = torch.ops.aten


class LiveMode(SizesFromData):
    """Records what happens on the device, and lets the CPU do its work.

    Attributes:
        values: what the program reads off the device; to be set before anything runs.
        streams: on which each operation runs; likewise.
    """

    values: Values
    streams: NodeStreams
    _caller_depth = 2

    def __init__(self, *watchers: Any) -> None:
        super().__init__(*watchers)
        self._real_elements = math.inf  # the CPU is real
        self._special |= {aten.copy_.default: self._copy}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        except torch.OutOfMemoryError as error:
            # A traceback keeps what its frames hold, and a card's has no frames of graphmem.
            refused = error.with_traceback(None)
            refused.__cause__ = refused.__context__ = None
        args, kwargs = (), None
        try:
            raise refused
        finally:
            del refused

    def _run(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = super()._run(func, types, args, kwargs)
        if isinstance(result, FakeTensor) and result.fake_device.type == "cpu":
            return self._on_host(result, args[0])
        return result

    def _record(self, *args: Any) -> Op:
        op = super()._record(*args)
        self.streams.note(op)
        return op

    def _run_real(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._spare(func, args, kwargs)
        result = func(*args, **kwargs)
        self._newest_node = torch._C._autograd._get_sequence_nr()
        return result

    def _on_host(self, tensor: torch.Tensor, source: Any) -> torch.Tensor:
        real = self.values.on_host(tensor, source)
        self._recorder.remember_maker(real, self._recorder.maker_of(tensor))
        return real

    def _copy(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """`copy_`; into a tensor of the host, it is a read."""
        target, source = args[:2]
        if isinstance(target, FakeTensor) or not isinstance(source, FakeTensor):
            return self._run(func, types, args, kwargs)
        like: Any = self._fake_mode.dispatch(aten.empty_like.default, types, (target,), {})
        assumed = self.values.on_host(like, source)
        self._record(func, args, kwargs, target, self._recorder.begin_op())
        self._spare(func, args, kwargs)
        target.copy_(assumed)
        return target

    def _fraction(self) -> float:
        return self.values.fraction()

    def _scalar(self, tensor: FakeTensor) -> Any:
        return self.values.scalar(tensor)
