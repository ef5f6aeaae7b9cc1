"""Matrix products with an `out_dtype` of their own, such as float32 from bfloat16 operands.

`FakeTensorMode` runs `addmm` and `baddbmm` by decompositions that know no `out_dtype` and take it
for `beta`, and there is no meta kernel for `bmm` into an `out`
(torch/_decomp/decompositions.py and torch/_meta_registrations.py of 2.11 to 2.13). The CUDA
kernels allocate the result, and nothing else (aten/src/ATen/native/cuda/Blas.cpp,
`_addmm_dtype_cuda` and its siblings); the recording `sft_nll` of fixtures/cuda/public shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def _product(
    left: torch.Tensor,
    right: torch.Tensor,
    out_dtype: torch.dtype,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    if left.shape[:-2] != right.shape[:-2] or left.shape[-1] != right.shape[-2]:
        raise RuntimeError(_refusal(left, right))
    if out is not None:
        return out
    return left.new_empty((*left.shape[:-1], right.shape[-1]), dtype=out_dtype)


def _sum_of_product(
    _self: torch.Tensor,
    left: torch.Tensor,
    right: torch.Tensor,
    out_dtype: torch.dtype,
    *,
    out: torch.Tensor | None = None,
    **_factors: complex,
) -> torch.Tensor:
    return _product(left, right, out_dtype, out=out)


def _refusal(left: torch.Tensor, right: torch.Tensor) -> str:
    shapes = " and ".join("x".join(map(str, each.shape)) for each in (left, right))
    return f"mat1 and mat2 shapes cannot be multiplied ({shapes})"


def _overloads(name: str, kernel: Callable[..., Any]) -> dict[Any, Callable[..., Any]]:
    packet = getattr(aten, name)
    names = ("dtype", "dtype_out")  # from torch 2.8 on
    return {getattr(packet, each): kernel for each in names if each in packet.overloads()}


KERNELS = {
    **_overloads("mm", _product),
    **_overloads("bmm", _product),
    **_overloads("addmm", _sum_of_product),
    **_overloads("baddbmm", _sum_of_product),
}
