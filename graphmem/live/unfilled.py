"""Large tensors on the host that were filled with random numbers which nobody has read yet.

A program makes its weights on the host and moves them to the card, where they have no data. So the
numbers are not needed, nor the memory: the system provides it when it is first written to. A laptop
can run the script of a model that is larger than its memory.

(1) An operation that fills a whole tensor with random numbers is noted, and not run. Likewise those
    that change such a tensor in place and read no other, and copies of it on the host.
(2) The generator jumps to where it would be (`jump_ahead`), so whatever is drawn later is what a
    real run draws.
(3) Before anything reads the tensor, the noted operations run, in their order, with the generator
    as it was. So the numbers are those of a real run, bit by bit.

Readers are operations that are no views, the methods in `_READERS`, and forked processes. An
address reads nothing: programs compare addresses, as to find weights that are tied. It does where
it is handed to `ctypes`, or to PyTorch's `save`. Not covered: libraries that read a tensor's memory
by another way.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import weakref
from collections.abc import Callable, Iterable
from functools import cache
from types import FrameType, FunctionType
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem import constructors
from graphmem.frames import Origin, origin_of
from graphmem.live.jump_ahead import jump
from graphmem.live.untouched import COPIES, UntouchedTensors
from graphmem.trace.operands import tensors_of
from graphmem.values.limits import FLOATS
from graphmem.virtual_device.patching import Method, Replacement

aten = torch.ops.aten

_DRAWS = frozenset({aten.normal_.default, aten.uniform_.default})
_CHANGES = _DRAWS | {
    aten.zero_.default,
    aten.fill_.Scalar,
    aten.erfinv_.default,
    aten.mul_.Tensor,
    aten.add_.Tensor,
    aten.clamp_.default,
}
_DTYPES = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})
_READERS = (
    *((torch.Tensor, name) for name in ("numpy", "tolist", "__dlpack__")),
    (torch.Tensor, "_typed_storage"),  # by which tensors are saved and shared
)
_ADDRESSES = ((torch.Tensor, "data_ptr"), (torch.UntypedStorage, "data_ptr"))


class _Looks(NamedTuple):
    """The part of a storage that a tensor shows."""

    dtype: torch.dtype
    offset: Any
    shape: torch.Size
    stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Looks:
        return cls(tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride())

    def at(self, memory: torch.UntypedStorage) -> torch.Tensor:
        """The tensor in a storage."""
        empty = constructors.empty(0, dtype=self.dtype, device="cpu")
        return empty.set_(memory, self.offset, self.shape, self.stride)


class _Change(NamedTuple):
    """An operation that was not run on its first operand.

    Attributes:
        state: the generator's, if it draws.
    """

    func: Any
    looks: _Looks
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    state: torch.Tensor | None = None

    def run(self, memory: torch.UntypedStorage) -> None:
        if self.state is None:
            self.func(self.looks.at(memory), *self.arguments, **self.options)
            return
        generator = _generator_of(self.options)
        now = generator.get_state()
        generator.set_state(self.state)
        try:
            self.func(self.looks.at(memory), *self.arguments, **self.options)
        finally:
            generator.set_state(now)


class _Copied(NamedTuple):
    """A copy of another such tensor, as it was then."""

    looks: _Looks
    source: _Looks
    nbytes: int
    changes: tuple[Any, ...]

    def run(self, memory: torch.UntypedStorage) -> None:
        source = torch.UntypedStorage(self.nbytes, device="cpu")
        _run(self.changes, source)
        self.looks.at(memory).copy_(self.source.at(source))


class _Unfilled(weakref.ref[torch.UntypedStorage]):
    """A weak reference to a storage that waits for its numbers."""

    __slots__ = ("changes", "key")
    key: int
    changes: list[_Change | _Copied]


def _always(_: FrameType) -> bool:
    return True


def _is_read_by_address(caller: FrameType | None) -> bool:
    """Whether a function that asks for an address can read what is there."""
    while caller is not None and origin_of(caller.f_code.co_filename) is Origin.GRAPHMEM:
        caller = caller.f_back
    if caller is None:
        return False
    known = caller.f_globals
    return known.get("__name__") == "torch.serialization" or any(
        name == "ctypes" or _is_of_ctypes(known.get(name)) for name in caller.f_code.co_names
    )


def _is_of_ctypes(value: Any) -> bool:
    made = isinstance(value, (type, FunctionType))
    return value is ctypes or (made and value.__module__ == "ctypes")


class UnfilledTensors:
    """Knows the tensors that wait for their numbers, and fills them when they are read."""

    def __init__(self, untouched: UntouchedTensors) -> None:
        self._untouched = untouched
        self._waiting: dict[int, _Unfilled] = {}
        _of_process.add(self)
        _hook()

    def replacements(self) -> list[Replacement]:
        """List the attributes to replace."""
        return [
            *((owner, name, self._reading(getattr(owner, name))) for owner, name in _READERS),
            *(
                (owner, name, self._reading(getattr(owner, name), _is_read_by_address))
                for owner, name in _ADDRESSES
            ),
        ]

    def _reading(self, original: Any, reads: Callable[[FrameType], bool] = _always) -> Any:
        def call(read: Any, *args: Any, **kwargs: Any) -> Any:
            if (self._waiting or self._untouched.exist) and reads(sys._getframe(1)):
                memory = read.untyped_storage() if isinstance(read, torch.Tensor) else read
                self._untouched.touch(memory)
                self._fill(memory)
            return original(read, *args, **kwargs)

        return Method(original, call)

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation on the host, or note it."""
        if func in _DRAWS and _is_large(args[0]):
            self._draw(func, *args, **kwargs)
            return args[0]
        if self._waiting:
            if func in _CHANGES and _reads_no_other(args, kwargs):
                return self._change(func, *args, **kwargs)
            if func in COPIES and (copy := self._copy(args[0], kwargs)) is not None:
                return copy
            self.before(func, args, kwargs)
        return func(*args, **kwargs)

    def before(self, func: Any, args: Any, kwargs: Any, most: float = math.inf) -> None:
        """Fill an operation's operands of at most so many elements, unless it makes a view."""
        if self._waiting and not func.is_view:
            for tensor in tensors_of((args, *kwargs.values())):
                if tensor.numel() <= most and not isinstance(tensor, FakeTensor):
                    self._fill(tensor.untyped_storage())

    def fill_all(self) -> None:
        """Fill what there is."""
        for unfilled in list(self._waiting.values()):
            memory = unfilled()
            if memory is not None:
                self._fill(memory)

    def forget(self) -> None:
        """Fill nothing of what there is."""
        self._waiting.clear()

    def _fill(self, memory: torch.UntypedStorage) -> None:
        unfilled = self._waiting.pop(memory._cdata, None)
        if unfilled is not None:
            with torch._C._DisableTorchDispatch(), torch.no_grad():
                _run(unfilled.changes, memory)

    def _draw(self, func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        def draw(numbers: torch.Tensor, generator: torch.Generator) -> None:
            func(numbers, *args, **kwargs | {"generator": generator})

        generator = _generator_of(kwargs)
        state = generator.get_state()
        jump(generator, draw, tensor.numel(), tensor.dtype)
        self._wait(tensor, [_Change(func, _Looks.of(tensor), args, kwargs, state)])

    def _wait(self, tensor: torch.Tensor, changes: list[_Change | _Copied]) -> None:
        memory = tensor.untyped_storage()
        unfilled = self._waiting[memory._cdata] = _Unfilled(memory, self._freed)
        unfilled.key, unfilled.changes = memory._cdata, changes

    def _freed(self, unfilled: _Unfilled) -> None:
        if self._waiting.get(unfilled.key) is unfilled:
            del self._waiting[unfilled.key]

    def _changes_of(self, tensor: torch.Tensor) -> list[_Change | _Copied] | None:
        unfilled = self._waiting.get(tensor.untyped_storage()._cdata)
        return None if unfilled is None else unfilled.changes

    def _change(self, func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        changes = self._changes_of(tensor)
        if changes is None or func in _DRAWS:
            self.before(func, (tensor,), kwargs)
            func(tensor, *args, **kwargs)
        else:
            changes.append(_Change(func, _Looks.of(tensor), args, kwargs))
        return tensor

    def _copy(self, tensor: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor | None:
        changes = self._changes_of(tensor)
        if changes is None or not _is_large(tensor) or not _keeps_place(kwargs):
            return None
        copy = constructors.empty(
            tensor.shape, dtype=kwargs.get("dtype") or tensor.dtype, device="cpu"
        )
        nbytes = tensor.untyped_storage().nbytes()
        copied = _Copied(_Looks.of(copy), _Looks.of(tensor), nbytes, tuple(changes))
        self._wait(copy, [copied])
        return copy


def _run(changes: Iterable[_Change | _Copied], memory: torch.UntypedStorage) -> None:
    for change in changes:
        change.run(memory)


def _reads_no_other(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return next(tensors_of((args[1:], *kwargs.values())), None) is None


def _is_large(tensor: torch.Tensor) -> bool:
    """Whether a tensor is all of its storage, and too large for its values to be followed.

    A storage that NumPy or another process sees as well is not resizable
    (torch/csrc/utils/tensor_numpy.cpp, `tensor_to_numpy`).
    """
    memory = tensor.untyped_storage()
    return (
        tensor.numel() > FLOATS
        and tensor.dtype in _DTYPES
        and tensor.is_contiguous()
        and memory.nbytes() == tensor.numel() * tensor.element_size()
        and memory.resizable()
    )


def _keeps_place(kwargs: dict[str, Any]) -> bool:
    layout = kwargs.get("memory_format") or torch.preserve_format
    return layout is torch.preserve_format and not kwargs.get("pin_memory")


def _generator_of(kwargs: dict[str, Any]) -> torch.Generator:
    return kwargs.get("generator") or torch.default_generator


_of_process: weakref.WeakSet[UnfilledTensors] = weakref.WeakSet()


@cache
def _hook() -> None:
    """Fill everything before each fork: data loaders' workers read what they find in memory."""
    if hasattr(os, "register_at_fork"):  # Windows has no forks
        os.register_at_fork(before=_fill_all)


def _fill_all() -> None:
    for unfilled in list(_of_process):
        unfilled.fill_all()
