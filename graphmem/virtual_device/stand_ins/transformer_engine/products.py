"""`generic_gemm`: cuBLAS with its epilogues (csrc/extensions/gemm.cpp).

(1) The output, unless one is given; with a quantizer, the product in high precision as well, except
    where the operands are FP8 with a scale for the whole and delayed scaling gives the output's.
(2) The gradient of a bias, and a GELU's input, if they are asked for.
(3) Copies of the scales of operands scaled in blocks, in the order that cuBLAS wants, unless they
    are in that order.

`te_general_grouped_gemm` writes into outputs that Python makes. The workspace is Python's as well
(`get_cublas_workspace`). Not covered: overlap with communication, operands in blocks of 128 on
Blackwell, and grouped products of operands whose scales are not in order.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from graphmem.virtual_device.stand_ins.transformer_engine.card import architecture, refuse
from graphmem.virtual_device.stand_ins.transformer_engine.names import torch_dtype
from graphmem.virtual_device.stand_ins.transformer_engine.quantizers import (
    DELAYED,
    create,
    fill,
    kind_of,
    shape_of,
)


def generic_gemm(
    A: Any,  # noqa: N803 - these names are the extension's
    transA: bool,  # noqa: N803
    B: Any,  # noqa: N803
    transB: bool,  # noqa: N803
    D: Any,  # noqa: N803
    quantizer: Any,
    output_dtype: Any,
    bias: Any,
    bias_type: Any,
    gelu: bool,
    gelu_in: Any,
    grad: bool,
    workspace: Any,
    workspace_size: int,
    accumulate: bool,
    use_split_accumulator: bool,
    comm_overlap: Any = None,
    comm_type: Any = None,
    extra_output: Any = None,
    bulk_overlap: bool = False,
    alpha: float = 1.0,
    beta: float | None = None,
) -> list[Any]:
    """The product of two matrices: [output, gradient of the bias, GELU's input, extra output]."""
    if comm_overlap is not None:
        refuse("generic_gemm that overlaps communication")
    shape = _output_shape(shape_of(A), transA, shape_of(B), transB)
    dtype = torch_dtype(output_dtype) if output_dtype is not None else A.dtype
    if D is None:
        D = create(quantizer, shape, dtype)  # noqa: N806
    is_low = _is_fp8(A) or _is_fp8(B)
    product = None
    if _is_quantised_afterwards(A, B, quantizer):
        product = create(None, shape, dtype)
    out_dtype = dtype if product is not None else getattr(D, "dtype", dtype)
    bias_grad = None
    if bias is not None:
        if grad:
            bias_grad = create(None, shape_of(B)[-1:], out_dtype)
        else:
            bias = bias.contiguous()
    before_gelu = None
    if gelu and not grad:
        before_gelu = create(None, shape, torch_dtype(bias_type) if is_low else out_dtype)
    copies = _ordered_scales(A, transA, B, transB)
    if product is not None:
        fill(quantizer)
    del copies, product
    return [D, bias_grad, before_gelu, extra_output]


def te_general_grouped_gemm(
    A: Any,  # noqa: N803
    transA: bool,  # noqa: N803
    B: Any,  # noqa: N803
    transB: bool,  # noqa: N803
    D: Any,  # noqa: N803
    output_dtype: Any,
    m_splits: Any,
    bias: Any,
    *options: Any,
) -> Any:
    """Products of many pairs of matrices; it returns `bias`, which has gradients of biases."""
    if D is None or any(_is_out_of_order(each) for each in (*A, *B)):
        refuse("te_general_grouped_gemm of these operands")
    return bias


def _is_out_of_order(operand: Any) -> bool:
    if hasattr(operand, "_is_2D_scaled"):
        return architecture() >= 100
    return not getattr(operand, "_with_gemm_swizzled_scales", True)


def _output_shape(
    a: tuple[int, ...], transposes_a: bool, b: tuple[int, ...], transposes_b: bool
) -> tuple[int, ...]:
    """`getGemmOutputShape`."""
    rows_a, rows_b = prod(a[:-1]), prod(b[:-1])
    inner = a[-1] if transposes_a else rows_a
    if inner != (rows_b if transposes_b else b[-1]):
        raise RuntimeError(f"Invalid matrix dimensions for GEMM (A={a}, B={b})")
    outer = (b[-1],) if transposes_b else b[:-1]
    return (*outer, rows_a if transposes_a else a[-1])


def _is_quantised_afterwards(a: Any, b: Any, quantizer: Any) -> bool:
    """Clause (1)."""
    if quantizer is None:
        return False
    is_scaled_whole = any(hasattr(each, "_transpose_invalid") for each in (a, b))
    return not (kind_of(quantizer) == DELAYED and is_scaled_whole)


def _is_fp8(operand: Any) -> bool:
    return hasattr(operand, "_fp8_dtype")


def _ordered_scales(a: Any, transposes_a: bool, b: Any, transposes_b: bool) -> list[torch.Tensor]:
    """Clause (3): `swizzle_scales_for_gemm`."""
    if not prod(shape_of(a)) or not prod(shape_of(b)):
        return []
    copies = []
    for operand, by_rows in ((a, transposes_a), (b, not transposes_b)):
        if hasattr(operand, "_is_2D_scaled") and architecture() >= 100:
            refuse("generic_gemm of operands scaled in blocks of 128 on this card")
        if getattr(operand, "_with_gemm_swizzled_scales", True):
            continue
        use = "rowwise" if by_rows else "columnwise"
        scales = getattr(operand, f"_{use}_scale_inv")
        copies.append(torch.empty(scales.shape, dtype=torch.uint8, device=scales.device))
    return copies
