"""Sizes, strides and dtypes of tensors, and ATen's predicates on them."""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise

import torch

from graphmem import tensor_iterator
from graphmem.graph import TensorOut

INDEX_BYTES = 8
"""Indices are int64."""

INT32_MAX = 2**31 - 1
"""The largest offset, or size, that kernels compute with in 32 bits."""

_WITH_CHANNELS = (4, 5)  # dimensions of the tensors that have a channels-last format


@cache
def item_bytes(dtype: str) -> int:
    """Bytes of one element."""
    size: int = getattr(torch, dtype).itemsize
    return size


@cache
def accumulate_bytes(dtype: str) -> int:
    """Bytes of `at::acc_type<dtype, true>` (aten/src/ATen/AccumulateType.h)."""
    kind: torch.dtype = getattr(torch, dtype)
    if not kind.is_floating_point and not kind.is_complex:
        return 8
    return max(item_bytes(dtype), 8 if kind.is_complex else 4)


def is_half(dtype: str) -> bool:
    """Whether a dtype is one of the 16-bit floating-point types."""
    return dtype in ("float16", "bfloat16")


def numel(tensor: TensorOut) -> int:
    """How many elements a tensor has."""
    return math.prod(tensor.shape)


def nbytes(tensor: TensorOut) -> int:
    """Bytes of a contiguous copy."""
    return numel(tensor) * item_bytes(tensor.dtype)


def ceil_div(dividend: int, divisor: int) -> int:
    """The quotient, rounded up."""
    return -(-dividend // divisor)


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a row-major tensor; sizes of 0 count as 1 (c10/core/MemoryFormat.h)."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def is_contiguous(tensor: TensorOut) -> bool:
    """`Tensor::is_contiguous`, which ignores the strides of dimensions of size 1."""
    return not numel(tensor) or _matches(tensor, contiguous_strides(tensor.shape))


def _matches(tensor: TensorOut, strides: tuple[int, ...]) -> bool:
    dims = zip(tensor.shape, tensor.stride, strides, strict=True)
    return all(size == 1 or stride == wanted for size, stride, wanted in dims)


def is_one_run(tensor: TensorOut) -> bool:
    """Whether `reshape(-1)` is a view: one stride runs through all elements.

    aten/src/ATen/TensorUtils.cpp, `computeStride`.
    """
    dims = [(n, s) for n, s in zip(tensor.shape, tensor.stride, strict=True) if n != 1]
    pairs = pairwise(dims)
    return not numel(tensor) or all(outer == size * inner for (_, outer), (size, inner) in pairs)


def is_channels_last(tensor: TensorOut) -> bool:
    """Whether a tensor of four dimensions is laid out NHWC, and not NCHW as well."""
    is_image = len(tensor.shape) == 4
    return is_image and not is_contiguous(tensor) and is_laid_out(tensor, channels_last=True)


def is_laid_out(tensor: TensorOut, *, channels_last: bool) -> bool:
    """Whether `contiguous` in that memory format copies nothing."""
    if not channels_last or len(tensor.shape) not in _WITH_CHANNELS:
        return is_contiguous(tensor)
    batch, channels, *rows = tensor.shape
    rows_first, channels_after = contiguous_strides((batch, *rows, channels)), len(rows) + 1
    strides = (rows_first[0], rows_first[channels_after], *rows_first[1:channels_after])
    return not numel(tensor) or _matches(tensor, strides)


def suggests_channels_last(tensor: TensorOut) -> bool:
    """`Tensor::suggest_memory_format` of images or volumes: only their order counts, not gaps.

    c10/core/MemoryFormat.h, `is_channels_last_strides_2d_s4` and `is_channels_last_strides_3d_s5`.
    """
    if len(tensor.shape) not in _WITH_CHANNELS or not tensor.stride[1]:
        return False
    least = 0
    for dim in (1, *range(len(tensor.shape) - 1, 1, -1), 0):
        size, stride = tensor.shape[dim], tensor.stride[dim]
        is_ambiguous = dim == 0 and least == tensor.stride[1]
        if not size or stride < least or is_ambiguous:
            return False
        least = stride * size
    return True


def is_dense(tensor: TensorOut) -> bool:
    """Whether a tensor is a permutation of a contiguous one."""
    return tensor_iterator.is_dense(tensor.shape, tensor.stride)
