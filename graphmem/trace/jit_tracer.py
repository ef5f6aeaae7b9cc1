"""The tracer of `torch.jit.trace`, which records operations while they run on the virtual GPU.

It records an operation before the dispatch mode gets it, and is set aside meanwhile; however:

(1) A convolution is recorded by its kernel, as `_convolution` (`DONT_RECORD_TRACE`,
    torchgen/packaged/autograd/gen_trace_type.py), which is what the traced program calls then.
(2) It is not set aside below operations written by hand, such as `copy_` (torch/csrc/autograd/
    TraceTypeManual.cpp), nor while autograd saves a convolution's tensors. Then each size would be
    a tensor (`THPVariable_size`), and a program's value be named after a variable of graphmem.
(3) The tracer keeps a number as a tensor, then prints and compares it. A mode gets such a tensor
    as the number (`parseIValuesToPyArgsKwargs`), which `view` and `isclose` do not take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
T = TypeVar("T")

_KERNEL = torch._C.DispatchKey.CompositeExplicitAutograd
_TRACER = torch._C._dispatch_key_parse("Tracer")
_WIDEST = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
_BENCHMARK = 9  # the first argument that only `_convolution` has


def is_tracing() -> bool:
    """Whether a tracer runs that has not been set aside."""
    return torch._C._get_tracing_state() is not None


def run(mode: TorchDispatchMode, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    """Run an operation that a mode got while the tracer is there.

    Args:
        mode: gets the operation once more, or what its kernel calls.
        func: the operation.
        types: the types of its tensors.
        args: its arguments.
        kwargs: its keyword arguments.
    """
    if func is aten.convolution.default:  # clause 1
        with _heard(), mode:
            return func._op_dk(_KERNEL, *args, **(kwargs or {}))
    return unheard(mode.__torch_dispatch__, func, types, args, kwargs)


def untraced(func: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """The operation that a program without a tracer would run, with its arguments."""
    if func is aten._convolution.default:  # clause 1
        return aten.convolution.default, args[:_BENCHMARK]
    if (
        args
        and type(args[0]) in _WIDEST  # checked first: this is asked of every operation
        and not any(isinstance(each, torch.Tensor) for each in args)
    ):  # clause 3
        kinds = [each.type for each in func._schema.arguments]
        return func, tuple(map(_as_tensor, args, kinds))
    return func, args


def _as_tensor(value: Any, kind: Any) -> Any:
    """The tensor that a number was; anything else as it is."""
    is_number = isinstance(kind, torch.TensorType) and type(value) in _WIDEST
    return torch.tensor(value, dtype=_WIDEST[type(value)]) if is_number else value


@contextmanager
def _heard() -> Iterator[None]:
    """Let the tracer hear of operations again: a mode runs with its key excluded."""
    is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(_TRACER)
    torch._C._dispatch_tls_set_dispatch_key_excluded(_TRACER, False)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_excluded(_TRACER, is_excluded)


def unheard(act: Callable[..., T], *args: Any) -> T:
    """Call a function while the tracer, if there is one, is set aside [clause 2]."""
    tracer: Any = torch._C._get_tracing_state()
    if tracer is None:
        return act(*args)
    _exchange(None)
    try:
        return act(*args)
    finally:
        _exchange(tracer)


def _exchange(tracer: Any) -> None:
    """Set a tracer, or none; not while its key is excluded (ATen/TracerMode.h)."""
    with _heard():
        torch._C._set_tracing_state(tracer)  # type: ignore[attr-defined]
