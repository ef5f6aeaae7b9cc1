"""Parameters keep their identity when they move to the device, and in a trace are always fake.

`nn.Module._apply` swaps a fake parameter with a new tensor, which fails if anything holds a weak
reference to it, and replaces a real one, which an existing optimizer would not notice. On CUDA it
assigns `.data`, so that is done here (torch/nn/modules/module.py, `_apply`). `.data` cannot be
assigned between a real CPU tensor and a fake one on the device: there the two objects swap their
entire contents, as `torch.utils.swap_tensors` does.

Libraries' subclasses of `nn.Parameter`, such as a weight that quantises itself when it moves, keep
their class and attributes: their fake form has a class that derives from both.

A library may copy a parameter by `type(parameter)(data, **parameter.__dict__)` (accelerate does, in
`init_empty_weights` and `set_module_tensor_to_device`). Type and attributes are then those of a
fake tensor; the call still returns the parameter that it would return on a card.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._functorch.eager_transforms import enable_inplace_requires_grad
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from graphmem import constructors
from graphmem.caller.tensors import Tensors, assign_data, become
from graphmem.virtual_device import kept_gradients, subclasses
from graphmem.virtual_device.lazy_parameters import (
    UninitializedTensorMixin,
    is_unshaped,
    materialize,
    move_unshaped,
    shape_for_dispatch,
)
from graphmem.virtual_device.patching import Replacement


def moved_by_data(before: Tensors) -> list[Replacement]:
    """List the attributes to replace so that parameters keep their identity.

    Args:
        before: tensors that already existed; notified of what happens to them.
    """
    data: Any = torch.Tensor.data

    def assign(tensor: torch.Tensor, new: torch.Tensor) -> None:
        if _are_alike(tensor, new):
            before.before_data(tensor)
            data.__set__(tensor, new)
            if isinstance(tensor, FakeTensor) and isinstance(new, FakeTensor):
                tensor.fake_device = new.fake_device
            return
        # `set_data` keeps the version (torch/csrc/autograd/variable.cpp), which `detach` shares
        other = _like(tensor, data.__get__(new))
        before.before_becoming(tensor, other)
        gradient = tensor.grad
        assign_data(tensor, other)
        if not before.holds(tensor, other):
            other.grad = None  # the graph made before leads to the tensor's
            if isinstance(other, FakeTensor):
                data.__set__(other, _without_memory(other))
        kept_gradients.keep(tensor, gradient)

    def swap(tensor: torch.Tensor, other: torch.Tensor) -> None:
        """`torch.utils.swap_tensors`, but allowing weak references: fake tensors have some."""
        before.before_becoming(tensor, other)
        become(tensor, other)

    return [
        (torch.utils, "swap_tensors", swap),
        (torch.Tensor, "data", property(data.__get__, assign)),
        *kept_gradients.replacements(),
        (torch.Tensor, "_make_subclass", staticmethod(_make_subclass)),
        (torch.nn.Parameter, "__new__", staticmethod(_new_parameter)),
        (torch.nn.Module, "_apply", _apply),
        (UninitializedTensorMixin, "materialize", materialize),
        (FakeTensor, "__new__", staticmethod(_new)),
    ]


def _without_memory(tensor: FakeTensor) -> FakeTensor:
    """What a graph made before may hold on: it holds the tensor, not the data that moved away."""
    with torch._C._DisableTorchDispatch():
        nothing = constructors.empty(0, dtype=tensor.dtype, device="meta")
    return FakeTensor(tensor.fake_mode, nothing, tensor.fake_device)


def _like(tensor: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """Make a tensor of other data with the class and attributes of `tensor`."""
    kind = type(tensor)
    if isinstance(tensor, FakeTensor) or not _is_own_parameter(kind):
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        make = torch.nn.Parameter if is_parameter else torch.Tensor.requires_grad_
        made: torch.Tensor = make(data, tensor.requires_grad)
    else:
        made = _make_subclass(kind, data, tensor.requires_grad)
    left = of_every_fake(tensor.fake_mode) if isinstance(tensor, FakeTensor) else ()
    for name, value in vars(tensor).items():
        if name not in left:
            vars(made).setdefault(name, value)
    if tensor.is_leaf and getattr(tensor, "grad_dtype", tensor.dtype) != tensor.dtype:
        made.grad_dtype = tensor.grad_dtype  # 2.9 has none
    return made


def of_every_fake(fake_mode: FakeTensorMode) -> frozenset[str]:
    """The attributes that make a tensor fake; one on the CPU could not be pickled with its mode."""
    with torch._C._DisableTorchDispatch():
        memory = constructors.empty(0, device="meta")
    made = FakeTensor(fake_mode, memory, torch.device("cpu"))
    return frozenset(vars(made)) | {"_is_param"}  # which `Parameter.__new__` sets on other classes


def fake_parameters(kind: Any) -> Any:
    """The class of the fake tensors that are parameters of a class."""
    return _fake(kind) if _is_own_parameter(kind) else FakeTensor


def _is_own_parameter(kind: type) -> bool:
    """Whether a class is a library's or a user's subclass of parameter, or a lazy module's."""
    return issubclass(kind, UninitializedTensorMixin) or (
        issubclass(kind, torch.nn.Parameter) and not kind.__module__.startswith("torch.")
    )


_make = torch.Tensor._make_subclass


def _make_subclass(
    kind: Any, data: torch.Tensor, require_grad: bool = False, **options: Any
) -> torch.Tensor:
    """`Tensor._make_subclass`; for fake data, a tensor that is both fake and of the class."""
    if not isinstance(data, FakeTensor) or not _is_own_parameter(kind):
        plain: torch.Tensor = _make(kind, data, require_grad, **options)
        return plain
    fake_class = _fake(kind)
    with subclasses.making(fake_class):
        made: torch.Tensor = data.detach().requires_grad_(require_grad)
    made.__class__ = fake_class
    return made


_new_plain: Any = torch.nn.Parameter.__new__


def _new_parameter(kind: Any, data: Any = None, requires_grad: bool = True) -> Any:
    """`Parameter.__new__`, which gives a tensor of another class than `Tensor` no class."""
    if isinstance(data, FakeTensor) and _is_own_parameter(kind):
        return _make_subclass(kind, data, requires_grad)
    if not isinstance(data, FakeTensor) or TracingContext.try_get() is not None:
        return _new_plain(kind, data, requires_grad)
    # `_make_subclass`, which a tensor of the card takes, asks no transform of `torch.func`.
    with enable_inplace_requires_grad(True):
        return _new_plain(kind, data, requires_grad)


_new_fake: Any = FakeTensor.__new__


def _new(kind: Any, first: Any = None, *args: Any, **options: Any) -> Any:
    """`FakeTensor.__new__`; given data instead of a mode, the parameter that the caller means."""
    if not isinstance(first, torch.Tensor):
        return _new_fake(kind, first, *args, **options)
    requires_grad = args[0] if args else options.get("requires_grad", True)
    return torch.nn.Parameter(first, requires_grad)


@cache
def _fake(kind: Any) -> Any:
    """The class of fake tensors for a class of parameters."""
    if issubclass(kind, FakeTensor):
        return kind
    body: dict[str, Any] = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    if issubclass(kind, UninitializedTensorMixin):
        body["shape"] = shape_for_dispatch
    return type(kind)(kind.__name__, (kind, FakeTensor), body)


def fake_from_birth(fake_mode: FakeTensorMode) -> list[Replacement]:
    """List the attributes to replace so that parameters take no memory on the CPU either."""

    def new(cls: type, data: Any = None, requires_grad: bool = True) -> Any:
        if data is None:
            data = torch.empty(0)
        if not isinstance(data, FakeTensor) and data.layout == torch.strided:
            data = fake_mode.from_tensor(data.detach())
        return _new_parameter(cls, data, requires_grad)

    return [(torch.nn.Parameter, "__new__", staticmethod(new))]


def _apply(
    module: torch.nn.Module, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
) -> torch.nn.Module:
    if recurse:
        for child in module.children():
            child._apply(function)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            (move_unshaped if is_unshaped(parameter) else _move)(parameter, function)
            module._parameters[name] = parameter  # TorchScript's module holds its former contents
    for name, buffer in module._buffers.items():
        if buffer is None:
            continue
        if is_unshaped(buffer):
            move_unshaped(buffer, function)
        else:
            module._buffers[name] = function(buffer)
    return module


_holds_others: Callable[[Any], bool] = is_traceable_wrapper_subclass


def _move(parameter: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with torch.no_grad():
        moved = function(parameter)
        if moved is parameter:
            return
        if _are_alike(parameter, moved) and not _holds_others(moved):
            parameter.data = moved  # frees the old memory, before the gradient takes new
            if parameter.grad is not None:
                parameter.grad.data = function(parameter.grad)
            return
        gradient = None if parameter.grad is None else function(parameter.grad)
    parameter.grad = None
    if _holds_others(moved):  # as in PyTorch's `_apply`
        become(parameter, torch.nn.Parameter(moved, requires_grad=parameter.requires_grad))
    else:
        parameter.data = moved
    if gradient is not None:
        parameter.grad = gradient


def _are_alike(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether one can take the other's data (`has_compatible_shallow_copy_type`)."""
    return isinstance(tensor, FakeTensor) == isinstance(other, FakeTensor) and (
        tensor.is_meta == other.is_meta
    )
