"""Operators that are one kernel on CUDA and a composite of others everywhere else.

A CPU build would take the composite for CUDA tensors, which saves other tensors. If the dispatcher
knows a kernel for CUDA it takes the operator whole, with the derivative formula that every build
has; the kernel itself is never called, because fake tensors are handled before it. A CUDA build
has all these kernels; for a release without one it is told to take the composite.

The list is every operator of native_functions.yaml with both `CUDA` and
`CompositeImplicitAutograd` among its kernels, or with the former by its `structured_delegate`
(torch 2.13).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from graphmem.errors import InternalError

_SINCE = {"_fused_rms_norm": (2, 9), "mish_backward": (1, 9), "silu_backward": (1, 7)}


@contextmanager
def fused_kernels(torch_release: tuple[int, int]) -> Iterator[None]:
    """Give the dispatcher exactly the kernels of a release while the context is open."""
    library = torch.library.Library("aten", "IMPL")
    try:
        for name, since in _SINCE.items():
            if not hasattr(torch.ops.aten, name):  # the installed release is older
                continue
            has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CUDA")
            if torch_release >= since and not has_kernel:
                library.impl(name, _never_called, "CUDA")
            elif torch_release < since:
                library.impl(name, getattr(torch.ops.aten, name).default.decompose, "AutogradCUDA")
        yield
    finally:
        library._destroy()


def _never_called(*args: Any, **kwargs: Any) -> NoReturn:
    raise InternalError("a CUDA kernel was called, where fake tensors should have been answered")
