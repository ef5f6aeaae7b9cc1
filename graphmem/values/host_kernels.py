"""Kernels that the CPU lacks and a card has, to compute known values by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

aten = torch.ops.aten


def _histc(values: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """A histogram, also of integers: `getBin` of aten/src/ATen/native/cuda/SummaryOps.cu.

    A mixture of experts counts its tokens so.
    """
    if values.is_floating_point():
        return aten.histc.default(values, *args, **kwargs)
    given = dict(zip(("bins", "min", "max"), args, strict=False)) | kwargs
    bins, least, most = given.get("bins", 100), int(given.get("min", 0)), int(given.get("max", 0))
    if least == most and values.numel():
        least, most = int(values.min()), int(values.max())
    if least == most:
        least, most = least - 1, most + 1
    dtype, values = values.dtype, values.to(torch.int64)
    within = values[(values >= least) & (values <= most)]
    places = ((within - least) * bins // (most - least)).clamp(max=bins - 1)
    return places.bincount(minlength=bins).to(dtype)


HOST_KERNELS: Mapping[Any, Callable[..., Any]] = {
    aten._efficientzerotensor.default: aten.zeros.default,
    aten.histc.default: _histc,
}
"""By operator. Zeros without memory (`ZeroTensorAllocator`, native/TensorFactories.h) cannot be
read; zeros with memory have the same values."""
