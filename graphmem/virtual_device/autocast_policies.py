"""The autocast policies of the simulated release, where they differ from the installed one.

In the lists of ATen/autocast_mode.h only `rms_norm` differs, from torch 2.9.1 to 2.15.0.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from graphmem.torch_releases import AUTOCAST_CASTS_RMS_NORM, Release, installed_release

aten = torch.ops.aten


@contextmanager
def autocast_of(torch_release: Release) -> Iterator[None]:
    """Apply a release's autocast policies to fake CUDA tensors while the context is open."""
    casts = AUTOCAST_CASTS_RMS_NORM.holds_in(torch_release)
    if casts == AUTOCAST_CASTS_RMS_NORM.holds_in(installed_release()):
        yield
        return
    library = torch.library.Library("aten", "IMPL")
    kernel: Any = _rms_norm_in_fp32 if casts else torch.library.fallthrough_kernel
    try:
        with warnings.catch_warnings():  # that a kernel of PyTorch's is overridden
            warnings.simplefilter("ignore", UserWarning)
            library.impl("rms_norm", kernel, "AutocastCUDA")
        yield
    finally:
        library._destroy()


def _rms_norm_in_fp32(
    source: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> Any:
    """`WrapFunction_` of the policy fp32 (aten/src/ATen/autocast_mode.h)."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
    with torch._C._ExcludeDispatchKeyGuard(keys):
        return aten.rms_norm(_in_fp32(source), normalized_shape, _in_fp32(weight), eps)


def _in_fp32(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """`cached_cast` to float32, which caches nothing; float64 is not eligible."""
    if tensor is None or tensor.dtype not in (torch.float16, torch.bfloat16):
        return tensor
    cast: torch.Tensor = aten._to_copy.default(tensor, dtype=torch.float32)
    return cast
