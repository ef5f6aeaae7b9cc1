"""The parts of a quantised weight or an optimizer's state: packed numbers, scales, tables.

(1) A tensor that holds others (torchao's) consists of those: `weight.qdata`, `weight.scale`.
(2) A parameter of a library's class keeps statistics in its attributes, or in those of an object
there (bitsandbytes' `Params4bit` keeps `quant_state.absmax`).
(3) A module may keep them in a separate object (bitsandbytes' `Linear8bitLt`: `state.SCB`).
(4) An optimizer's state may be a list (SOAP's `Q`), or an object (GaLore's `projector`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from graphmem.trace.wrapper_tensors import is_wrapper, paths_within

OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))
"""The attributes of any module: its parameters, buffers, children and hooks."""

_DEPTH = 3
_OF_PYTORCH = ("torch", "builtins", "collections", "functools")


def parts_of(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that a tensor holds, each with its path; a plain tensor is its own part."""
    parts = list(paths_within(tensor))
    if len(parts) == 1:
        yield "", tensor
    else:
        yield from parts


def tensors_beside(parameter: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Clause (2): tensors in a parameter's attributes, each with its path."""
    if isinstance(parameter, torch.nn.Parameter) and not is_wrapper(type(parameter)):
        yield from _below(parameter, _DEPTH)


def tensors_of_objects(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Clause (3): tensors in objects that a module keeps."""
    for name, value in vars(module).items():
        if name not in OF_EVERY_MODULE and is_foreign(value):
            for path, tensor in _below(value, _DEPTH - 1):
                yield f"{name}.{path}", tensor


def tensors_within(value: Any, depth: int = _DEPTH) -> Iterator[tuple[str, torch.Tensor]]:
    """Clause (4): the tensors in one value of an optimizer's state, each with its path."""
    if isinstance(value, torch.Tensor):
        yield from parts_of(value)
    elif depth and isinstance(value, (list, tuple)):
        for i, each in enumerate(value):
            yield from _suffixed(f"[{i}]", each, depth)
    elif depth and isinstance(value, dict):
        for key, each in dict.items(value):
            yield from _suffixed(subscript(key), each, depth)
    elif depth and is_foreign(value):
        for name, each in vars(value).items():
            yield from _suffixed(f".{name}", each, depth)


_LEAST_ADDRESS = 1 << 32
_PLAIN = (str, bytes, int, float, complex, type(None), torch.dtype, torch.device)


def subscript(key: Any) -> str:
    """A dictionary's key in brackets; of a tensor or an object, whose text may run code, the class.

    Printing a tensor on the card is an operation, at which names are looked for. A number as large
    as an object's `id` is taken for one, which differs from run to run.
    """
    if type(key) is int and key >= _LEAST_ADDRESS:
        return "[<id>]"
    plain = all(isinstance(each, _PLAIN) for each in (key if type(key) is tuple else (key,)))
    if plain:
        return f"[{key!r}]"
    kinds = (torch.nn.Parameter, torch.Tensor, type(key))  # on the card, both are fake tensors
    return f"[<{next(kind for kind in kinds if isinstance(key, kind)).__name__}>]"


def _suffixed(suffix: str, value: Any, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    return ((suffix + path, tensor) for path, tensor in tensors_within(value, depth - 1))


def _below(value: Any, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    for name, each in vars(value).items():
        if isinstance(each, torch.Tensor):
            yield name, each
        elif depth > 1 and is_foreign(each):
            for path, tensor in _below(each, depth - 1):
                yield f"{name}.{path}", tensor


def is_foreign(value: Any) -> bool:
    """Whether a value is an instance of a library's class."""
    kind: Any = type(value)
    return is_foreign_kind(kind)


@lru_cache(maxsize=4096)
def is_foreign_kind(kind: Any) -> bool:
    """Whether a class is a library's, and its instances have attributes."""
    is_known = issubclass(kind, (torch.nn.Module, torch.Tensor, FakeTensorMode, type))
    if is_known or not _has_attributes(kind):
        return False
    module: str = kind.__module__
    return module.partition(".")[0] not in _OF_PYTORCH


def _has_attributes(kind: type) -> bool:
    """Whether `vars` of an instance is its own dict; one in C may hide it, as `TypeVar` does."""
    found = (vars(base)["__dict__"] for base in kind.__mro__ if "__dict__" in vars(base))
    return isinstance(next(found, None), (GetSetDescriptorType, MemberDescriptorType))
