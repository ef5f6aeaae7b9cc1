"""Which of its arguments a Triton kernel writes into, as PyTorch finds out for `torch.compile`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

import torch

from graphmem.silenced import silenced
from graphmem.torch_releases import installed_release
from graphmem.virtual_device.unseen_writes import forget, is_known

_ANALYSIS = "torch._higher_order_ops.triton_kernel_wrap"
_written: WeakKeyDictionary[Any, dict[Any, Collection[str]]] = WeakKeyDictionary()


def forget_written(kernel: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
    """Forget the values of what a launch writes into.

    The kernel is analysed only if it takes something known. Arguments that are no tensors but hold
    some, as descriptors and tuples do, count as written.
    """
    named = named_arguments(kernel, args, options)
    forget(tensor for value in named.values() for tensor in _held_by(value))
    known = {name: value for name, value in named.items() if is_known(value)}
    if known:
        written = written_by(kernel, named)
        forget(value for name, value in known.items() if name in written)


def named_arguments(
    kernel: Any, args: tuple[Any, ...], options: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a launch by name, without Triton's own options."""
    named = {each.name: each.default for each in kernel.params if each.has_default}
    named |= dict(zip(kernel.arg_names, args, strict=False))
    return named | {name: value for name, value in options.items() if name in kernel.arg_names}


def _held_by(argument: Any) -> tuple[Any, ...]:
    if isinstance(argument, tuple):
        return argument
    return () if isinstance(argument, torch.Tensor) else (getattr(argument, "base", None),)


def written_by(kernel: Any, named: Mapping[str, Any]) -> Collection[str]:
    """The names of the arguments that are written, for arguments of these types and constants."""
    launch = tuple((name, _kind(value)) for name, value in named.items())
    of_kernel = _written.setdefault(kernel, {})
    if launch not in of_kernel:
        of_kernel[launch] = _analysed(kernel, dict(named))
    return of_kernel[launch]


def _kind(argument: Any) -> str:
    """What the analysis goes by: the repr of a descriptor or a tuple would print its tensors."""
    if isinstance(argument, torch.Tensor):
        return str(argument.dtype)
    if isinstance(argument, tuple):
        return str([*map(_kind, argument)])
    if is_dataclass(argument):
        return str([_kind(getattr(argument, each.name)) for each in fields(argument)])
    return repr(argument)


def _analysed(kernel: Any, named: dict[str, Any]) -> Collection[str]:
    """All names if Triton cannot parse the kernel, of which PyTorch would warn."""
    analysis = import_module(_ANALYSIS)
    with silenced(analysis.log):
        if hasattr(analysis, "identify_mutated_tensors"):
            descriptors: list[Any] = [{}] if installed_release() >= (2, 8) else []
            return list(analysis.identify_mutated_tensors(kernel, named, *descriptors))
        accesses = analysis.identify_accessed_tensors(kernel, named, {})
        return [each.name for each in accesses.read_writes.writes]
