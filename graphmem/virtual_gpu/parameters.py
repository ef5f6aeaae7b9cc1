"""Parameters keep their identity when they move to the device, and are fake from birth in a trace.

`nn.Module._apply` swaps a fake parameter for a new tensor, which fails where anything holds a weak
reference to it, and replaces a real one, which an optimizer made earlier would not notice. On CUDA
it assigns `.data`, so that is what happens here (torch/nn/modules/module.py, `_apply`). Between a
real tensor of the CPU and a fake one of the device, `.data` cannot be assigned: there the two
objects swap all that they are, as `torch.utils.swap_tensors` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from graphmem.caller.tensors import Tensors, become
from graphmem.virtual_gpu.patching import Replacement


def moved_by_data(before: Tensors) -> list[Replacement]:
    """The attributes to replace so that parameters keep their identity.

    Args:
        before: tensors that were there before; told of what happens to them.
    """
    data: Any = torch.Tensor.data

    def assign(tensor: torch.Tensor, new: torch.Tensor) -> None:
        if _are_alike(tensor, new):
            before.before_data(tensor)
            data.__set__(tensor, new)
            return
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        kind = torch.nn.Parameter if is_parameter else torch.Tensor.requires_grad_
        other = kind(new.detach(), tensor.requires_grad)
        before.before_becoming(tensor, other)
        become(tensor, other)

    return [
        (torch.Tensor, "data", property(data.__get__, assign)),
        (torch.nn.Module, "_apply", _apply),
    ]


def fake_from_birth(fake_mode: FakeTensorMode) -> list[Replacement]:
    """The attributes to replace so that parameters take no memory on the CPU either."""
    original_new = torch.nn.Parameter.__new__

    def new(cls: type, data: Any = None, requires_grad: bool = True) -> Any:
        if data is None:
            data = torch.empty(0)
        if not isinstance(data, FakeTensor) and data.layout == torch.strided:
            data = fake_mode.from_tensor(data.detach())
        return original_new(cls, data, requires_grad)

    return [(torch.nn.Parameter, "__new__", staticmethod(new))]


def _apply(
    module: torch.nn.Module, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
) -> torch.nn.Module:
    if recurse:
        for child in module.children():
            child._apply(function)
    for parameter in module._parameters.values():
        if parameter is not None:
            _move(parameter, function)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = function(buffer)
    return module


def _move(parameter: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with torch.no_grad():
        moved = function(parameter)
        gradient = None if parameter.grad is None else function(parameter.grad)
    if moved is parameter:
        return
    parameter.grad = None
    parameter.data = moved
    if isinstance(parameter, FakeTensor) and isinstance(moved, FakeTensor):
        parameter.fake_device = moved.fake_device
    if gradient is not None:
        parameter.grad = gradient


def _are_alike(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether one can take the other's data (`has_compatible_shallow_copy_type`)."""
    return isinstance(tensor, FakeTensor) == isinstance(other, FakeTensor) and (
        tensor.is_meta == other.is_meta
    )
