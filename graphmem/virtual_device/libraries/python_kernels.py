"""Operators of libraries and programs whose CUDA kernels are written in Python.

`torch.library.register_kernel(name, "cuda")`, or "default" for every device, takes a function that
allocates results and scratch through PyTorch and passes their addresses to compiled code, and so
does `torch.library.custom_op`. Run as it is, it allocates what it would on a card; the operator's
shape function (`register_fake`) would leave out the scratch. The same goes for functional
collectives, whose kernels copy, call the process group and return their arguments, while their
shape functions return new memory (torch/csrc/distributed/c10d/Functional.cpp;
`_wrap_tensor_autograd` of torch/distributed/_functional_collectives.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS

_LIBRARIES = frozenset({"bitsandbytes", "flash_attn", "quanto", "_c10d_functional", "_dtensor"})
_BY_RULE = frozenset({"flash_attn_3"})
"""Libraries with compiled kernels, whose allocations the pass `kernel_memory` has rules for."""
_KEYS = (torch._C.DispatchKey.CUDA, torch._C.DispatchKey.CompositeExplicitAutograd)


def has_python_kernel(func: Any) -> bool:
    """Whether an operator's own kernel runs on the virtual card."""
    library = func.name().partition("::")[0]
    return (library in _LIBRARIES or is_custom(func)) and any(_keys_of(func))


def is_custom(func: Any) -> bool:
    """Whether a program defined an operator with a Python kernel (`torch.library.custom_op`)."""
    name = func.name().partition(".")[0]
    return name in OPDEFS and name.partition("::")[0] not in _BY_RULE


def run_kernel(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator's kernel with the dispatcher state of the operator's call."""
    with torch._C._RestorePythonTLSSnapshot():  # type: ignore[attr-defined]
        return func._op_dk(next(_keys_of(func)), *args, **kwargs)


def no_scratch(func: Any, error: Exception) -> tuple[str, str, str]:
    """The assumption that a kernel allocates nothing but its results: what, value, why."""
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    what = f"scratch memory of {func.name().replace('::', '.')}"
    return what, "none", f"its kernel cannot run without a card: {reason}"


def call_in_words(func: Any, names: Iterable[str | None]) -> str:
    """Describe which operator made a tensor, and from which named tensors.

    Of a weight and its statistics, whose names begin with the weight's, only the weight is named.
    """
    known = [name for name in names if name is not None]
    wholes = [n for n in known if not any(n.startswith(f"{other}.") for other in known)]
    made = f"made by {func.name().replace('::', '.')}"
    return f"{made} for {' and '.join(wholes)}" if wholes else made


def _keys_of(func: Any) -> Iterator[Any]:
    """The dispatch keys with a kernel, in order: CUDA's, then that for any device."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return (key for key in _KEYS if has_kernel(func.name(), key.name))
