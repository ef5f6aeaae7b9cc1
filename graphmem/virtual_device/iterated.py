"""TensorIterator's choice of strides for a result (aten/src/ATen/TensorIterator.cpp)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from graphmem.tensor_iterator import compared, is_dense, reordered


def iterated_strides(operands: Sequence[torch.Tensor], shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a result allocated for these operands, taken in order."""
    if all(operand.shape == shape for operand in operands):
        strides = _of_alike(operands, shape)
        if strides is not None:
            return strides
    strides_of = [_expanded(each, shape) for each in operands]

    def should_swap(one: int, other: int) -> int:
        pairs = ((strides[one], strides[other]) for strides in strides_of)
        return compared(pairs, shape[one], shape[other])

    return _in_order(reordered(range(len(shape)), should_swap), shape)


def _of_alike(operands: Sequence[torch.Tensor], shape: Sequence[int]) -> tuple[int, ...] | None:
    """`compute_fast_setup_type` and `fast_set_up`."""
    first = operands[0]
    if all(each.is_contiguous() for each in operands):
        return _in_order(range(len(shape) - 1, -1, -1), shape)
    if all(each.is_contiguous(memory_format=torch.channels_last) for each in operands):
        return _in_order((1, 3, 2, 0), shape)
    is_alike = all(each.stride() == first.stride() for each in operands)
    return first.stride() if is_alike and is_dense(first.shape, first.stride()) else None


def _expanded(operand: torch.Tensor, shape: Sequence[int]) -> list[int]:
    """`compute_strides`: zero where an operand is broadcast."""
    missing = len(shape) - operand.dim()
    own = zip(operand.shape, operand.stride(), shape[missing:], strict=True)
    return [0] * missing + [0 if size == 1 != whole else stride for size, stride, whole in own]


def _in_order(order: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [0] * len(shape), 1
    for dimension in order:
        strides[dimension] = step
        step *= max(shape[dimension], 1)
    return tuple(strides)
