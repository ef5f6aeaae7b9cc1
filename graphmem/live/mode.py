"""The dispatch mode of a live run: a followed trace's, with a real CPU."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem.allocator.messages import AllocatorSettingError
from graphmem.caller.turns import NestedAnalysisError
from graphmem.errors import InputError
from graphmem.graph import Op
from graphmem.live.collector_pace import CollectorPace
from graphmem.live.messages import RefusedCall, SecondGpuError, WrongCardError
from graphmem.live.unfilled import UnfilledTensors
from graphmem.live.untouched import UntouchedTensors
from graphmem.online.mode import FollowedMode
from graphmem.trace import jit_tracer, real_tensors
from graphmem.trace.dispatch import DEVICE
from graphmem.trace.operands import tensors_of
from graphmem.trace.refused_operators import at
from graphmem.values.limits import FLOATS
from graphmem.virtual_device.device_memory import DeviceMemory

_NO_REFUSALS = (AllocatorSettingError, NestedAnalysisError, SecondGpuError)
"""What PyTorch refuses itself, and what concerns a program that uses graphmem."""


class LiveMode(FollowedMode):
    """Records operations on the device; operations on the CPU run for real.

    Attributes:
        pace: how often Python's cycle collector runs.
        unfilled: the tensors on the host that wait for their numbers.
        untouched: those that nobody has written to.
        refusal: what graphmem refused first, and where.
    """

    def __init__(self, memory: DeviceMemory, *watchers: Any) -> None:
        super().__init__(memory, *watchers)
        self.pace = CollectorPace(self._recorder)
        self.untouched = UntouchedTensors()
        self.unfilled = UnfilledTensors(self.untouched)
        self.refusal: RefusedCall | None = None
        self._real_elements = math.inf  # the CPU is real
        self.reads.zeros = partial(self.untouched.zeros, otherwise=self.reads.zeros)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        func, args = jit_tracer.untraced(func, args)
        if jit_tracer.is_tracing():
            return jit_tracer.run(self, func, types, args, kwargs)
        real_tensors.check_copied(func, args, kwargs)
        waits = func is not DEVICE and self.pace.wait()
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        except torch.OutOfMemoryError as error:
            # A traceback keeps the variables of its frames; on a card it has no frames of graphmem.
            refused = error.with_traceback(None)
            refused.__cause__ = refused.__context__ = None
        finally:
            if waits:
                self.pace.go_on()
        args, kwargs = (), None
        try:
            raise refused
        finally:
            del refused

    def note_refusal(self, error: InputError) -> None:
        """Remember the first, without its frames, which would keep tensors."""
        if self.refusal is None and not isinstance(error, _NO_REFUSALS):
            self.refusal = RefusedCall(str(error), error.hint, self._location.place())

    def leave_to_child(self) -> None:
        """Watch no module in a forked child, where this mode is not active."""
        self._location.unfollow()

    def _is_answered(self, source: torch.Tensor, copy: FakeTensor) -> bool:
        """Everything on the CPU is real."""
        return True

    def _own_kernel(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        before = self.refusal
        result = super()._own_kernel(func, types, args, kwargs)
        self.refusal = before  # the kernel did without what was refused inside it
        return result

    def _write(self, target: torch.Tensor, copied: torch.Tensor) -> None:
        if not self.untouched.takes(target, copied):
            self.untouched.wrote(target)
            super()._write(target, copied)

    def _record(self, *args: Any) -> Op:
        func, operands, options = args[:3]
        self.unfilled.before(func, operands, options, FLOATS)  # the most whose values are followed
        op = super()._record(*args)
        if any(each.storage is None for each in op.outputs):
            self._check_card(args[3])
        return op

    def _check_card(self, result: Any) -> None:
        """Refuse tensors on another rank's card, whose memory is not followed."""
        own = self._recorder.device
        for tensor in tensors_of((result,)):
            device = tensor.fake_device if isinstance(tensor, FakeTensor) else own
            if device.type == own.type and device != own:
                raise WrongCardError(own, device, at(self._location.place()))

    def _stays_real(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """What is made on the host in the shape of a tensor elsewhere is real as well."""
        return super()._stays_real(func, args, kwargs) or real_tensors.is_like(func, args, kwargs)

    def _run_real(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._spare(func, args, kwargs)
        if args and isinstance(args[0], FakeTensor):
            args = (real_tensors.shape_of(args[0]), *args[1:])
        result = self.untouched.run(func, args, kwargs, self.unfilled.run)
        self._recorder.host.note(result)
        self._newest_node = torch._C._autograd._get_sequence_nr()
        return result
