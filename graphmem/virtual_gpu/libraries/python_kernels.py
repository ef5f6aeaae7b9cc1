"""Operators of libraries whose CUDA kernels are written in Python.

`torch.library.register_kernel(name, "cuda")`, or "default" for every device, takes a function that
makes results and scratch by PyTorch and hands their addresses to compiled code. Run as it is, it
allocates what it allocates on a card; the shape function of the same operator (`register_fake`)
would leave the scratch out. So with functional collectives, whose kernels copy, call the process
group and return what they were given, where their shape functions return new memory
(torch/csrc/distributed/c10d/Functional.cpp; `_wrap_tensor_autograd` of
torch/distributed/_functional_collectives.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

_LIBRARIES = frozenset({"bitsandbytes", "flash_attn", "_c10d_functional", "_dtensor"})
_KEYS = (torch._C.DispatchKey.CUDA, torch._C.DispatchKey.CompositeExplicitAutograd)


def has_python_kernel(func: Any) -> bool:
    """Whether an operator's own kernel runs on the virtual card."""
    return func.name().partition("::")[0] in _LIBRARIES and any(_keys_of(func))


def run_kernel(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator's kernel with the dispatcher's state at the operator's call."""
    with torch._C._RestorePythonTLSSnapshot():  # type: ignore[attr-defined]
        return func._op_dk(next(_keys_of(func)), *args, **kwargs)


def call_in_words(func: Any, names: Iterable[str | None]) -> str:
    """Which operator made something, and for which of the tensors that it is given.

    Of a weight and its statistics, which have longer names, the weight alone is told.
    """
    known = [name for name in names if name is not None]
    wholes = [n for n in known if not any(n.startswith(f"{other}.") for other in known)]
    made = f"made by {func.name().replace('::', '.')}"
    return f"{made} for {' and '.join(wholes)}" if wholes else made


def _keys_of(func: Any) -> Iterator[Any]:
    """The keys with a kernel, in the dispatcher's order: a kernel for CUDA, then any device's."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return (key for key in _KEYS if has_kernel(func.name(), key.name))
