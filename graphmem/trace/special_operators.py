"""Operators that behave differently on a card than by their fake rules or in this walk.

(1) Losses keep the storage of all their unreduced values (`virtual_device/unreduced_losses.py`).
(2) Fused attention returns different shapes than its meta kernels (`virtual_device/attention.py`).
(3) Fused optimizers with a tensor learning rate have no meta kernel, and return nothing.
(4) Fast paths of attention call other operators on a card (`virtual_device/encoder_layers.py`).
(5) `detach` and `clone` allocate nothing where the engine would not call them.
(6) Tensors of zeros without memory, which forward-mode derivatives have, are copied from a zero
    that is made and expanded (`zeroTensorFallback` in aten/src/ATen/ZeroTensorFallback.cpp); the
    fallback has been passed when the copy comes here. So is the number that one is multiplied by
    (`mul_zerotensor`, aten/src/ATen/native/BinaryOps.cpp), in the type of `scalar_to_tensor`.
(7) A tensor set to a slice of a storage is a view of that storage (`storage_parts`).
(8) Whether two tensors are the same view of a storage is no kernel (`is_set_to`,
    aten/src/ATen/native/TensorProperties.cpp).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from graphmem import constructors
from graphmem.trace.hidden_methods import HiddenMethodsMode
from graphmem.trace.python_functions import name_of
from graphmem.trace.saved_variables import is_just_unpacked
from graphmem.trace.storage_parts import StoragePart, set_in_whole
from graphmem.virtual_device.attention import FUSED_ATTENTION, as_returned, efficient_gradients
from graphmem.virtual_device.encoder_layers import FAST_PATHS
from graphmem.virtual_device.unreduced_losses import LOSSES, in_unreduced_storage

aten = torch.ops.aten

_FUSED_UPDATES = (
    aten._fused_sgd_.default,
    aten._fused_sgd_.tensor_lr,
    aten._fused_adagrad_.default,
    *([aten._fused_adagrad_.tensor_lr] if "tensor_lr" in aten._fused_adagrad_.overloads() else []),
    aten._fused_adam_.tensor_lr,
    aten._fused_adamw_.tensor_lr,
)


@contextmanager
def _uncached(fake_mode: FakeTensorMode) -> Iterator[None]:
    """Have a meta kernel's own results, with all of their storage."""
    was_enabled, fake_mode.cache_enabled = fake_mode.cache_enabled, False
    try:
        yield
    finally:
        fake_mode.cache_enabled = was_enabled


def _is_set_to(func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Clause (8)."""
    one, other = (
        (each.untyped_storage()._cdata, each.storage_offset(), each.shape, each.stride())
        for each in args
    )
    return one == other


class SpecialOperatorsMode(HiddenMethodsMode):
    """A trace that runs these operators as a card does."""

    def __init__(self, *watchers: Any) -> None:
        super().__init__(*watchers)
        self._handlers |= {
            aten.detach.default: self._detach,
            aten.clone.default: self._clone,
            aten._to_copy.default: self._copy_zeros,
            **dict.fromkeys(LOSSES, self._loss),
            **dict.fromkeys(FUSED_ATTENTION, self._attention),
            aten._efficient_attention_backward.default: self._efficient_gradients,
            aten._scaled_dot_product_efficient_attention_backward.default: self._padded_gradients,
            **dict.fromkeys(_FUSED_UPDATES, self._update),
            **dict.fromkeys(FAST_PATHS, self._fast_path),
            aten._scaled_mm.out: self._into_result,
            aten.set_.source_Storage: self._set_in_whole,
            aten.set_.source_Storage_storage_offset: self._set_in_whole,
            aten.is_set_to.default: _is_set_to,
        }

    def _copy_zeros(
        self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Clause (6)."""
        tensor = args[0]
        if not isinstance(tensor, torch.Tensor):
            args = (constructors.tensor(np.asarray(tensor)), *args[1:])
        elif tensor._is_zerotensor():
            with self:
                zero = constructors.zeros((), dtype=tensor.dtype, device=tensor.device)
                args = (zero.expand(tensor.shape), *args[1:])
        return self._run(func, types, args, kwargs)

    def _set_in_whole(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Clause (7)."""
        if isinstance(args[1], StoragePart):
            func = aten.set_.source_Storage_storage_offset
            args = set_in_whole(*args)
        return self._run(func, types, args, kwargs)

    def _loss(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        values, target = args[:2]
        if not (isinstance(values, FakeTensor) or isinstance(target, FakeTensor)):
            return self._run(func, types, args, kwargs)
        tick = self._recorder.begin_op()
        loss: Any = self._fake_mode.dispatch(func, types, args, kwargs)
        result = in_unreduced_storage(self._fake_mode, loss, values, target)
        self._record(func, args, kwargs, result, tick)
        return result

    def _attention(
        self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        tick = self._recorder.begin_op()
        returned: Any = self._fake_mode.dispatch(func, types, args, kwargs)
        result = as_returned(self._fake_mode, func, args, returned)
        self._record(func, args, kwargs, result, tick)
        return result

    def _fast_path(
        self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        is_on_card = args[0].device.type == self._recorder.device.type == "cuda"
        return (self._decompose if is_on_card else self._run)(func, types, args, kwargs)

    def _efficient_gradients(
        self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        tick = self._recorder.begin_op()
        with _uncached(self._fake_mode):
            result = efficient_gradients(self._fake_mode, args, kwargs)
        self._record(func, args, kwargs, result, tick)
        return result

    def _padded_gradients(
        self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Keep what pads the gradient of a mask to a multiple of 16.

        It is a slice (native/transformers/cuda/attention_backward.cu, `grad_bias`), of which
        FakeTensorMode's cache remembers strides alone. On an H100: zoo_doge.
        """
        with _uncached(self._fake_mode):
            return self._run(func, types, args, kwargs)

    def _into_result(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Record an operation of compiled code that writes into `out` and has no meta kernel."""
        return self._record_made(func, args, kwargs, kwargs["out"])

    def _update(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        """Record an operation that only writes into its arguments, which needs no meta kernel."""
        if self._stays_real(func, args, kwargs):
            self._run_real(func, args, kwargs)
        else:
            self._record(func, args, kwargs, None, self._recorder.begin_op())

    def _detach(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Return an unpacked tensor itself: in a real run, autograd makes it a variable for free.

        It asks for a detached copy here only because its argument is held twice at that moment
        (torch/csrc/autograd/variable.h, `make_variable`), so it may have the tensor itself.
        """
        (tensor,) = args
        if is_just_unpacked(tensor):
            return tensor
        return self._run(func, types, args, kwargs)

    def _clone(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Clone cuDNN's reserve space, into which its node writes, only if the node may run again.

        That is `retain_variables` in derivatives.yaml, which only the real engine can set.
        """
        is_recurrent = self.node is not None and name_of(self.node) == "CudnnRnnBackward0"
        if is_recurrent and not self.keeps_graph:
            return args[0]
        return self._run(func, types, args, kwargs)
