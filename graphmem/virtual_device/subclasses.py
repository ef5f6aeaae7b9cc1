"""Tensors of the program's own classes, such as MONAI's `MetaTensor`, on the device.

A class without a `__torch_dispatch__` of its own is meant: its tensors are plain, with attributes.
`Tensor.__torch_function__` makes an operation's results of the class again, by `as_subclass`
(torch/_tensor.py, `_convert`), which wraps an alias (`THPVariable_as_subclass`,
torch/csrc/autograd/python_variable.cpp).

(1) A fake tensor becomes one of a class that derives from both, and from those of the class's
    bases: what takes a class and its base is of the class (`issubclass`, in `__torch_function__`).
(2) A tensor on the host that is to be of such a class, since it was copied from the device, is of
    the program's.
(3) What a fake tensor knows of itself is among its attributes, but not of those that the program
    sees in `__dict__`: `MetaTensor` copies and replaces them all, and fastai also those of a tensor
    that becomes a plain one again.
(4) Operations on the device take such tensors on the host as plain ones.
(5) A tensor cannot change to a class with `__slots__`, such as torchrec's
    `TableBatchedEmbeddingSlice`: it is made of that class, before autograd sees it.
"""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from graphmem import constructors
from graphmem.caller.tensors import ATTRIBUTES
from graphmem.torch_releases import installed_release
from graphmem.virtual_device.patching import Replacement

_OWN = "_graphmem_own"
_of_host: Any = torch.Tensor.as_subclass


class _Attributes(dict[str, Any]):
    """The program's attributes of a tensor; what is added here is added there."""

    def __init__(self, tensor: FakeTensor) -> None:
        every = ATTRIBUTES.__get__(tensor)
        super().__init__({name: every[name] for name in every.keys() - every[_OWN]})
        self._every = every

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        self._every[name] = value

    def update(self, *others: Any, **named: Any) -> None:
        for name, value in dict(*others, **named).items():
            self[name] = value

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


def _replace_attributes(tensor: FakeTensor, new: dict[str, Any]) -> None:
    """Clause (3)."""
    old = ATTRIBUTES.__get__(tensor)
    ATTRIBUTES.__set__(tensor, new | {name: old[name] for name in old[_OWN]})


_ATTRIBUTES = property(_Attributes, _replace_attributes)


class _Plain(FakeTensor):
    """A fake tensor that was of a class of the program's."""

    __dict__: Any = _ATTRIBUTES

    def detach(self) -> torch.Tensor:
        """Of the same class, as `nn.Parameter` asks."""
        return _as_subclass(super().detach(), torch.Tensor)


class _Carrying(FakeTensor):
    """A fake tensor whose class is asked what to make of results."""


# Assigned, since the metaclass disables it where there is a `__torch_dispatch__`
# (`THPVariableMetaType_init`, torch/csrc/autograd/python_variable.cpp).
_Carrying.__torch_function__ = vars(torch.Tensor)["__torch_function__"]  # type: ignore[method-assign]


def replacements() -> list[Replacement]:
    """The attributes to replace."""
    return [(torch.Tensor, "as_subclass", _as_subclass)]


def as_plain(value: Any) -> Any:
    """Clause (4), for any argument of an operation."""
    kind = type(value)
    if kind in (list, tuple):
        return kind(map(as_plain, value))
    if kind is torch.Tensor or not issubclass(kind, torch.Tensor) or _dispatches(kind):
        return value
    with torch._C._DisableTorchDispatch():
        return _of_host(value, torch.Tensor)


def _as_subclass(tensor: torch.Tensor, kind: type) -> torch.Tensor:
    is_fake = isinstance(tensor, FakeTensor)
    if not is_fake or (_dispatches(kind) and not issubclass(kind, FakeTensor)):
        # Up to torch 2.5 C++ refuses what a mode has returned, an object of Python already.
        is_unseen = not is_fake and installed_release() < (2, 6)
        with torch._C._DisableTorchDispatch() if is_unseen else nullcontext():
            made: torch.Tensor = _of_host(tensor, _program_class(kind))
        return made
    with torch._C.DisableTorchFunctionSubclass(), making(_fake_class(kind)):
        made = torch.ops.aten.alias.default(tensor)
    if not isinstance(made, FakeTensor):  # within a meta kernel, which calls the class's methods
        return made
    take_class(made, kind)
    return made


class _Making(TorchDispatchMode):
    """Clause (5), for the result of one operation."""

    def __init__(self, fake_class: type) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._class = fake_class

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        fake = func(*args, **(kwargs or {}))
        if not isinstance(fake, FakeTensor):
            return fake
        with torch._C._DisableTorchDispatch():
            memory = constructors.empty(0, dtype=fake.dtype, device="meta")
            memory.set_(fake.untyped_storage(), fake.storage_offset(), fake.shape, fake.stride())
        return FakeTensor.__new__(self._class, fake.fake_mode, memory, fake.fake_device)


def making(fake_class: type) -> AbstractContextManager[object]:
    """Where the result of an operation is of a class, if it could not become of it later."""
    has_slots = fake_class.__basicsize__ > FakeTensor.__basicsize__
    return _Making(fake_class) if has_slots else nullcontext()


def take_class(fake: FakeTensor, kind: type) -> None:
    """Give a fake tensor a class of the program's, or take it away again."""
    if not hasattr(fake, _OWN):
        setattr(fake, _OWN, frozenset(ATTRIBUTES.__get__(fake)) | {_OWN})
    fake.__class__ = _Plain if kind is torch.Tensor else _fake_class(kind)


def _dispatches(kind: Any) -> bool:
    return kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


@cache
def _fake_class(kind: Any) -> Any:
    """Clause (1)."""
    if issubclass(kind, FakeTensor):
        return kind
    body = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__dict__": _ATTRIBUTES,
    }
    bases = [each for each in kind.__bases__ if issubclass(each, torch.Tensor)]
    parents = [_Carrying if each is torch.Tensor else _fake_class(each) for each in bases]
    made = type(kind)(kind.__name__, (kind, *parents), body)
    made.__torch_function__ = inspect.getattr_static(kind, "__torch_function__")
    return made


def _program_class(kind: Any) -> Any:
    """Clause (2)."""
    if kind is _Plain:
        return torch.Tensor
    return kind.__bases__[0] if issubclass(kind, _Carrying) else kind
