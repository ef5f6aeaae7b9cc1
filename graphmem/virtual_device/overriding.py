"""Kernels in place of PyTorch's own, where registering them for the card is not enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import DispatchKey

from graphmem.torch_releases import installed_release
from graphmem.torch_releases.installed_build import KERNELS_MAY_BE_OVERRIDDEN


def override(library: torch.library.Library, name: str, kernel: Any, key: str) -> None:
    """`library.impl(name, kernel, key, allow_override=True)`.

    Before torch 2.8 the list of what is registered is all that forbids it.
    """
    if KERNELS_MAY_BE_OVERRIDDEN.holds_in(installed_release()):
        library.impl(name, kernel, key, allow_override=True)
        return
    torch.library._impls.discard(f"{library.ns}/{name}/{key}")
    library.impl(name, kernel, key)


@contextmanager
def decomposed_by(name: str, kernel: Callable[..., Any]) -> Iterator[None]:
    """Have the fake tensors of compilers take a composite operator on the card by a kernel.

    Before torch 2.8, in inference mode, they run the composite (`OpOverload.decompose`,
    torch/_ops.py), and attention's asks the driver for the card.
    """
    if KERNELS_MAY_BE_OVERRIDDEN.holds_in(installed_release()):
        yield
        return
    operator, composite = (
        getattr(torch.ops.aten, name).default,
        DispatchKey.CompositeImplicitAutograd,
    )

    def decompose(first: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if first.device.type == "cuda":
            return kernel(first, *args, **kwargs)
        del operator.py_kernels[composite]
        try:
            return operator.decompose(first, *args, **kwargs)
        finally:
            operator.py_kernels[composite] = decompose

    operator.py_kernels[composite] = decompose
    try:
        yield
    finally:
        del operator.py_kernels[composite]
