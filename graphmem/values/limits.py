"""Limits on the number of elements whose values are followed."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from graphmem.values.plans import ValuePlan

aten = torch.ops.aten

INTEGERS = 1 << 24
"""The most elements of an integer or bool tensor: a mask of 4096 x 4096."""

FLOATS = 1 << 22
"""The most elements of any other tensor: the overlaps of 200,000 anchors with 20 boxes, which
decide how many anchors a detector trains (torchvision's RetinaNet and FCOS)."""

DRAWN = 1 << 16
"""The most elements of a tensor of random numbers other than integers."""

PRODUCT = 1 << 26
"""The most arithmetic of one product, counting a multiplication and an addition as two: a 4 x 4
matrix and 2,000,000 points. It takes 2 ms in 32 bits but 0.15 s in 16 bits, for which few CPUs
have instructions, and frozen networks that read known images are nothing but larger ones."""

_PRODUCTS = {aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.convolution}

POSTPONED = 1 << 12
"""The fewest elements that are computed only when they are asked for: fewer cost nothing."""

DEEPEST = 64
"""The most computations in a row that wait, each for the one before it."""

TABLE = 1 << 10
"""The most elements of a table of integers that is written entry by entry."""


def is_carried(dtype: torch.dtype, elements: int) -> bool:
    """Whether a tensor with this many elements has its values carried [clause 5]."""
    return elements <= (FLOATS if is_number(dtype) else INTEGERS)


def is_number(dtype: torch.dtype) -> bool:
    """Whether a dtype has numbers other than integers."""
    return dtype.is_floating_point or dtype.is_complex


def is_small(result: Any) -> bool:
    """Whether the values of all of an operation's results are carried."""
    if isinstance(result, torch.Tensor):
        return is_carried(result.dtype, result.numel())
    if isinstance(result, (list, tuple)):
        return all(is_small(each) for each in result)
    return False


def is_computed(plan: ValuePlan, result: Any) -> bool:
    """Whether an operation's results are carried, if its operands are known."""
    if not plan.is_known or not is_small(result):
        return False
    return not plan.is_random or is_drawn(result)


def is_large_product(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> bool:
    """Whether an operation multiplies more than `PRODUCT` allows, by PyTorch's own count."""
    packet = func.overloadpacket
    if packet not in _PRODUCTS:
        return False
    if packet is not aten.convolution:  # a dtype may follow, which PyTorch's count does not expect
        args = tuple(each for each in args if isinstance(each, torch.Tensor))
    operations: int = flop_registry[packet](*args, **kwargs, out_val=result)
    return operations > PRODUCT


def is_drawn(tensor: Any) -> bool:
    """Whether a tensor is small enough for random numbers to be drawn for it here."""
    return not isinstance(tensor, torch.Tensor) or (
        tensor.numel() <= DRAWN or not tensor.dtype.is_floating_point
    )


def is_table(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a table of integers that a program may write entry by entry."""
    return tensor.numel() <= TABLE and not is_number(tensor.dtype)


def is_postponed(func: Any, result: Any) -> bool:
    """Whether an operation's result is computed only when it is asked for."""
    if not isinstance(result, torch.Tensor) or result.numel() < POSTPONED:
        return False
    return torch.Tag.pointwise in func.tags and torch.Tag.nondeterministic_seeded not in func.tags
