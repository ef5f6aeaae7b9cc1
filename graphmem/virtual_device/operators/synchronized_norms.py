"""The operators of `nn.SyncBatchNorm`, which have no meta kernels.

aten/src/ATen/native/cuda/Normalization.cu and Normalization.cuh of torch 2.11; what the
channels-last kernels take besides is in passes/kernels/batch_norm.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten

_HALVES = (torch.float16, torch.bfloat16)


def _stats(tensor: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """`batch_norm_stats_cuda`: mean and inverse deviation of each channel."""
    return _two(tensor, tensor.shape[1], tensor.dtype)


def _gathered(
    tensor: torch.Tensor, means: torch.Tensor, *_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """`batch_norm_gather_stats_cuda_template`: those of all ranks."""
    return _two(means, means.shape[1], means.dtype)


def _two(like: torch.Tensor, size: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = torch.float32 if dtype in _HALVES else dtype
    return like.new_empty(size, dtype=dtype), like.new_empty(size, dtype=dtype)


def _elementwise(tensor: torch.Tensor, *_: Any) -> torch.Tensor:
    """`batch_norm_elemt_cuda`: in the layout of its input."""
    return torch.empty_like(tensor)


def _reduced(
    grad: torch.Tensor,
    tensor: torch.Tensor,
    mean: torch.Tensor,
    inverse: torch.Tensor,
    weight: torch.Tensor | None,
    *wanted: bool,
) -> tuple[torch.Tensor | None, ...]:
    """`batch_norm_backward_reduce_cuda`; the channels-last kernel makes all four results."""
    last = _takes_channels_last(grad) and _takes_channels_last(tensor)
    if last and weight is None:
        return mean.new_empty(mean.shape), mean.new_empty(mean.shape), *_empty(mean)
    of_input, of_weight, of_bias = (True, True, True) if last else wanted
    likes = (mean, mean, weight, weight)
    made = (of_input, of_input, of_weight, of_bias)
    return tuple(
        like.new_empty(tensor.shape[1]) if is_made and like is not None else None
        for like, is_made in zip(likes, made, strict=True)
    )


def _empty(like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return like.new_empty(0), like.new_empty(0)


def _takes_channels_last(tensor: torch.Tensor) -> bool:
    """`batch_norm_use_channels_last_kernels`, which is true of rows of channels as well."""
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    if layout is not None and tensor.is_contiguous(memory_format=layout):
        return True
    return tensor.is_contiguous() and tensor.stride(1) == 1


def _backward(grad: torch.Tensor, tensor: torch.Tensor, *_: Any) -> torch.Tensor:
    """`batch_norm_backward_elemt_cuda`: contiguous, unless both are channels last."""
    if _takes_channels_last(grad) and _takes_channels_last(tensor):
        return torch.empty_like(tensor)
    return tensor.new_empty(tensor.shape)


KERNELS: dict[Any, Callable[..., Any]] = {
    aten.batch_norm_stats.default: _stats,
    aten.batch_norm_gather_stats_with_counts.default: _gathered,
    aten.batch_norm_elemt.default: _elementwise,
    aten.batch_norm_backward_reduce.default: _reduced,
    aten.batch_norm_backward_elemt.default: _backward,
}
