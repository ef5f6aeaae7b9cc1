"""TensorIterator's order of dimensions (aten/src/ATen/TensorIterator.cpp).

It determines the strides of fake results, and the shape of kernels' loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

Dimension = TypeVar("Dimension")


def reordered(
    dimensions: Sequence[Dimension], should_swap: Callable[[Dimension, Dimension], int]
) -> list[Dimension]:
    """`reorder_dimensions`: fastest first.

    An insertion sort from the last dimension on, because comparisons may be ambiguous.

    Args:
        dimensions: in the tensor's order.
        should_swap: 1 if the first comes after the second, -1 if before, 0 if undecided.
    """
    order = list(reversed(dimensions))
    for start in range(1, len(order)):
        moving = start
        for before in range(start - 1, -1, -1):
            swap = should_swap(order[before], order[moving])
            if swap > 0:
                order[before], order[moving] = order[moving], order[before]
                moving = before
            elif swap < 0:
                break
    return order


def compared(strides: Iterable[tuple[int, int]], size: int, other_size: int) -> int:
    """`should_swap` by strides: those of two dimensions in each operand, then their sizes."""
    for mine, other in strides:
        if not mine or not other:
            continue
        if mine != other:
            return 1 if mine > other else -1
        if size > other_size:
            return 1
    return 0


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """`is_non_overlapping_and_dense`: contiguous once its dimensions are sorted."""
    step = 1
    dims = zip(strides, shape, strict=True)
    for stride, size in sorted(dim for dim in dims if dim[1] != 1):
        if stride != step:
            return False
        step *= size
    return True
