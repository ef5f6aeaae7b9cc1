"""xformers' `unbind` (xformers/ops/unbind.py of 0.0.35).

In the backward pass gradients that lie in one storage as their stack would are that stack; others
are stacked.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch


class _Unbind(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, dim: int) -> tuple[torch.Tensor, ...]:
        ctx.dim = dim
        return tensor.unbind(dim)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _stacked(gradients, ctx.dim), None


def _stacked(tensors: tuple[torch.Tensor, ...], dim: int) -> torch.Tensor:
    first = tensors[0]
    if len(tensors) < 2 or dim > first.dim() or not _are_alike(tensors):
        return torch.stack(tensors, dim)
    offsets = [int(tensor.storage_offset()) for tensor in tensors]
    step = offsets[1] - offsets[0]
    if any(later - earlier != step for earlier, later in pairwise(offsets)):
        return torch.stack(tensors, dim)
    size, stride = list(first.shape), list(first.stride())
    size.insert(dim, len(tensors))
    stride.insert(dim, step)
    return first.as_strided(size, stride)


def _are_alike(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether all have the sizes and strides of the first, and its storage."""
    seen = {(each.shape, each.stride(), each.untyped_storage()._cdata) for each in tensors}
    return len(seen) == 1


def unbind(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, ...]:
    """The slices of a tensor along a dimension."""
    made: tuple[torch.Tensor, ...] = _Unbind.apply(x, dim)  # type: ignore[no-untyped-call]
    return made
