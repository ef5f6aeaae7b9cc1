"""Factorisations and least squares (aten/src/ATen/native/BatchLinearAlgebra.cpp).

`geqrf` and `linalg_lstsq` return column-major matrices, as LAPACK needs them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

aten = torch.ops.aten


def _geqrf(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`geqrf_out_helper`."""
    *batch, rows, columns = matrix.shape
    return _by_columns(matrix, matrix.shape), matrix.new_empty((*batch, min(rows, columns)))


def _lstsq(
    matrix: torch.Tensor,
    right: torch.Tensor,
    rcond: float | None = None,
    *,
    driver: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """`linalg_lstsq_out_info` with `gels`, the only driver on CUDA.

    It writes the solution over a copy of the right-hand side, which may have more rows, and returns
    the first rows of it; rank and singular values stay empty.
    """
    *batch, rows, columns = matrix.shape
    is_vector = right.dim() == 1 or right.shape == matrix.shape[:-1]
    width = 1 if is_vector else right.shape[-1]
    of_right = right.shape[:-1] if is_vector else right.shape[:-2]
    batch = list(torch.broadcast_shapes(batch, of_right[:-1] if is_vector else of_right))
    solution = _by_columns(matrix, (*batch, max(rows, columns), width)).narrow(-2, 0, columns)
    real = matrix.real.dtype if matrix.is_complex() else matrix.dtype
    residuals = matrix.new_empty((*batch, width) if rows > columns else (0,), dtype=real)
    return (
        solution.squeeze(-1) if is_vector else solution,
        residuals,
        matrix.new_empty(0, dtype=torch.int64),
        matrix.new_empty(0, dtype=real),
    )


def _by_columns(like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    *batch, rows, columns = shape
    return like.new_empty((*batch, columns, rows)).mT


KERNELS = {aten.geqrf.default: _geqrf, aten.linalg_lstsq.default: _lstsq}
