"""`unique` and its kin: how many values may be distinct, and the memory that they are in.

(1) A card makes room for as many values, and as many counts, as there are elements, and then
    shrinks both by `resize_`, which keeps the storage (`compute_unique`,
    aten/src/ATen/native/cuda/UniqueCub.cu). So a handful of distinct values may hold gigabytes.
(2) Of truth values that are sorted there are two at most, and it makes room for two, counts
    included (`UniqueCub<bool>`, the same file).
(3) The CPU does (1) where values that follow each other are compared, and makes what it returns
    otherwise (`unique_consecutive_cpu_template`, `unique_cpu_sorted_template`,
    aten/src/ATen/native/Unique.cpp).

Not covered: what is distinct along a dimension.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

aten = torch.ops.aten

DISTINCT = (aten._unique2.default, aten.unique_consecutive.default)


def most(tensor: torch.Tensor) -> int:
    """How many values can be distinct at most, if they are sorted."""
    return min(2, tensor.numel()) if tensor.dtype == torch.bool else tensor.numel()


def room(func: Any, tensor: FakeTensor) -> int | None:
    """How many elements distinct values, and their counts, have room for; None: as many as are."""
    is_on_card = tensor.fake_device.type != "cpu"
    if func is aten._unique2.default and not is_on_card:
        return None
    return 2 if counts_always(func, tensor) else tensor.numel()


def counts_always(func: Any, tensor: FakeTensor) -> bool:
    """Whether values are counted that nobody asked to have counted [clause 2]."""
    is_sorted = func is aten._unique2.default and tensor.fake_device.type != "cpu"
    return is_sorted and tensor.dtype == torch.bool
