"""TensorIterator's choice of strides for a result (aten/src/ATen/TensorIterator.cpp)."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def iterated_strides(operands: Sequence[torch.Tensor], shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a result that is allocated for operands, in their order."""
    if all(operand.shape == shape for operand in operands):
        strides = _of_alike(operands, shape)
        if strides is not None:
            return strides
    return _in_order(_order([_expanded(each, shape) for each in operands], shape), shape)


def _of_alike(operands: Sequence[torch.Tensor], shape: Sequence[int]) -> tuple[int, ...] | None:
    """`compute_fast_setup_type` and `fast_set_up`."""
    first = operands[0]
    if all(each.is_contiguous() for each in operands):
        return _in_order(range(len(shape) - 1, -1, -1), shape)
    if all(each.is_contiguous(memory_format=torch.channels_last) for each in operands):
        return _in_order((1, 3, 2, 0), shape)
    is_alike = all(each.stride() == first.stride() for each in operands)
    return first.stride() if is_alike and _is_dense(first) else None


def _is_dense(tensor: torch.Tensor) -> bool:
    """`is_non_overlapping_and_dense`: contiguous, once its dimensions are put in order."""
    dims = zip(tensor.stride(), tensor.shape, strict=True)
    step = 1
    for stride, size in sorted((stride, size) for stride, size in dims if size != 1):
        if stride != step:
            return False
        step *= size
    return True


def _expanded(operand: torch.Tensor, shape: Sequence[int]) -> list[int]:
    """`compute_strides`: zero where an operand is repeated."""
    missing = len(shape) - operand.dim()
    own = zip(operand.shape, operand.stride(), shape[missing:], strict=True)
    return [0] * missing + [0 if size == 1 != whole else stride for size, stride, whole in own]


def _order(operands: Sequence[Sequence[int]], shape: Sequence[int]) -> list[int]:
    """`reorder_dimensions`: the dimensions, fastest first."""
    order = list(range(len(shape) - 1, -1, -1))
    for start in range(1, len(order)):
        at = start
        for before in range(start - 1, -1, -1):
            swap = _compared(operands, shape, order[before], order[at])
            if swap > 0:
                order[before], order[at] = order[at], order[before]
                at = before
            elif swap < 0:
                break
    return order


def _compared(operands: Sequence[Sequence[int]], shape: Sequence[int], a: int, b: int) -> int:
    """`should_swap`: 1 if dimension `a` is slower than `b`, -1 if faster, 0 if nobody can say."""
    for strides in operands:
        if not strides[a] or not strides[b]:
            continue
        if strides[a] != strides[b]:
            return 1 if strides[a] > strides[b] else -1
        if shape[a] > shape[b]:
            return 1
    return 0


def _in_order(order: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [0] * len(shape), 1
    for dimension in order:
        strides[dimension] = step
        step *= max(shape[dimension], 1)
    return tuple(strides)
