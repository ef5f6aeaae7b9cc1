"""Shifts of booleans by a number, which makes integers of them.

The CPU and CUDA kernels promote the operands (aten/src/ATen/native/BinaryOps.cpp, `__lshift__`, and
aten/src/ATen/native/cuda/BinaryShiftOpsKernels.cu); the references that fake tensors run take
integers alone (torch/_refs/__init__.py, `bitwise_left_shift` of 2.13).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def _shifted(data: torch.Tensor, places: int) -> torch.Tensor:
    return torch.empty_like(data, dtype=torch.result_type(data, places))


KERNELS: dict[Any, Callable[..., Any]] = {
    aten.__lshift__.Scalar: _shifted,
    aten.__rshift__.Scalar: _shifted,
}
