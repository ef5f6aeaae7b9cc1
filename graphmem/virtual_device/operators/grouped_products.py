"""`_grouped_mm`, the products of experts, in every dtype that the CUDA kernel accepts.

Until torch 2.12 the meta kernel accepts only bfloat16 (torch/_meta_registrations.py,
`_meta_grouped_mm_common`); for other dtypes the CUDA kernel multiplies group by group
(aten/src/ATen/native/cuda/GroupedBlas.cpp, `_grouped_mm_cuda`, and native/GroupedMMUtils.h,
`_grouped_mm_fallback`). Rows of the result are padded to 16 bytes
(`create_grouped_gemm_output_tensor`).
"""

from __future__ import annotations

import torch

aten = torch.ops.aten

_ALIGNED_BYTES = 16


def _grouped_mm(
    left: torch.Tensor,
    right: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    groups = [] if offs is None else [offs.shape[0]]
    if left.dim() == right.dim():
        shape = [*(groups if left.dim() == 2 else left.shape[:1]), left.shape[-2], right.shape[-1]]
    else:
        shape = [left.shape[-2], right.shape[-1]]
    dtype = out_dtype or left.dtype
    items = _ALIGNED_BYTES // dtype.itemsize
    width = -(-shape[-1] // items) * items
    strides = [shape[-2] * width, width, 1][-len(shape) :]
    return left.new_empty_strided(shape, strides, dtype=dtype)


KERNELS = {aten._grouped_mm.default: _grouped_mm} if hasattr(aten, "_grouped_mm") else {}
