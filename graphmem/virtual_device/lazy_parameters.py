"""Parameters and buffers of lazy modules (`torch.nn.LazyLinear`) before they have a shape.

They are empty, and PyTorch lets a program do no more than move, cast and fill them
(`UninitializedTensorMixin`, torch/nn/parameter.py). On the card they are fake tensors of their
class, like a library's parameters (`graphmem.virtual_device.parameters`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

UninitializedTensorMixin: Any = vars(torch.nn.parameter)["UninitializedTensorMixin"]
"""The base class of such parameters and buffers, which PyTorch's stubs leave out."""

_materialize: Callable[..., None] = UninitializedTensorMixin.materialize
_refuse: Any = UninitializedTensorMixin.__dict__["shape"]


def _shape(tensor: Any) -> torch.Size:
    """The shape, while PyTorch runs one of the few methods that it allows; else its error."""
    if torch._C._is_torch_function_enabled():
        _refuse.__get__(tensor)
    return torch.Tensor.shape.__get__(tensor)  # type: ignore[attr-defined, no-any-return]


shape_for_dispatch = property(_shape)
"""A fake tensor's operations ask for its shape in Python; a real one's ask in C++."""


def is_unshaped(value: Any) -> bool:
    """Whether a value is a parameter or buffer without a shape."""
    return isinstance(value, UninitializedTensorMixin)


def move_unshaped(tensor: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Move or cast an empty tensor as `function` does; its own class would refuse."""
    with torch.no_grad():
        tensor.data = function(torch.empty(0, dtype=tensor.dtype, device=tensor.device))


def materialize(
    tensor: Any, shape: Any, device: torch.device | None = None, dtype: torch.dtype | None = None
) -> None:
    """`UninitializedTensorMixin.materialize`; a tensor that lies on the card stays fake."""
    is_parameter = tensor.cls_to_become is torch.nn.Parameter
    _materialize(tensor, shape, device or tensor.device, dtype or tensor.dtype)
    if "fake_mode" in vars(tensor):  # its class, which PyTorch has just set, is no longer a fake's
        tensor.__class__ = FakeTensor
        tensor._is_param = is_parameter
