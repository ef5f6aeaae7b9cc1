"""Operators that PyTorch's own code runs by their parts, in one form for all devices.

Above them is a derivative of their own, so that autograd saves what theirs wants and calls them
whole; below, in C++, they are a few lines of other operators, whose temporaries a card allocates
(`CompositeExplicitAutograd` in aten/src/ATen/native/native_functions.yaml). That code runs here,
part by part, and each part passes the trace.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

aten = torch.ops.aten

_KEYS = (
    torch._C.DispatchKey.CompositeExplicitAutograd,
    torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional,
    torch._C.DispatchKey.CompositeImplicitAutograd,
)

IN_PARTS = frozenset(
    {
        aten._euclidean_dist.default,
        aten._trilinear.default,
        aten.dist.default,
        aten.isfinite.default,  # which `isclose` calls, in `allclose`
        aten.isinf.default,
        aten.ldexp.Tensor,
        aten.mvlgamma.default,
    }
)


def run_in_parts(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a composite returns; its parts go to the mode that is on."""
    return func._op_dk(_key_of(func.name()), *args, **kwargs)


@cache
def _key_of(name: str) -> Any:
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return next(key for key in _KEYS if has_kernel(name, key.name))
