"""`unique` and its relatives: how many values may be distinct, and the memory they occupy.

(1) A card allocates as many values, and as many counts, as there are elements, and then shrinks
    both by `resize_`, which keeps the storage (`compute_unique`,
    aten/src/ATen/native/cuda/UniqueCub.cu). So a handful of distinct values may hold gigabytes.
(2) Sorted bools have at most two distinct values, and a card allocates two, counts included
(`UniqueCub<bool>`, the same file).
(3) The CPU does (1) for `unique_consecutive`, and otherwise allocates exactly what it returns
    (`unique_consecutive_cpu_template`, `unique_cpu_sorted_template`,
    aten/src/ATen/native/Unique.cpp).

Not covered: distinct slices along a dimension.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

aten = torch.ops.aten

DISTINCT = (aten._unique2.default, aten.unique_consecutive.default)


def most(tensor: torch.Tensor) -> int:
    """The largest possible number of distinct values, if they are sorted."""
    return min(2, tensor.numel()) if tensor.dtype == torch.bool else tensor.numel()


def room(func: Any, tensor: FakeTensor) -> int | None:
    """How many elements are allocated for distinct values, and for their counts; None: no spare."""
    is_on_card = tensor.fake_device.type != "cpu"
    if func is aten._unique2.default and not is_on_card:
        return None
    return 2 if counts_always(func, tensor) else tensor.numel()


def counts_always(func: Any, tensor: FakeTensor) -> bool:
    """Whether counts are allocated even if the caller does not want them [clause 2]."""
    is_sorted = func is aten._unique2.default and tensor.fake_device.type != "cpu"
    return is_sorted and tensor.dtype == torch.bool
