"""Training with 2:4 sparse matrices: two of four neighbours are kept, with bits that say which.

aten/src/ATen/native/sparse/cuda/SparseSemiStructuredTile.cu, SparseSemiStructuredApply.cu,
SparseSemiStructuredApplyDense.cu and cuSPARSELtOps.cpp of 2.6. PyTorch has meta kernels for the
products alone. That of cuSPARSELt takes the compressed matrix, a vector, for a matrix of as many
rows (torch/_meta_registrations.py, `meta__cslt_sparse_mm` of 2.13).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten

_WARP = (32, 64)
"""Rows and columns for which a warp of `_sparse_semi_structured_tile` is responsible."""
_THREAD = 8
"""Rows and columns of a thread's share, for which it writes a mask of 8 bytes."""


def _tile(
    data: torch.Tensor, algorithm: str = "", use_cutlass: bool = True
) -> tuple[torch.Tensor, ...]:
    """`sparse_semi_structured_tile_typed`: the matrix, its transpose, and masks."""
    rows, columns = data.shape
    compress = _for_cutlass if use_cutlass else _for_cusparselt
    return *compress(data, rows, columns), *compress(data, columns, rows), _masks(data)


def _for_cutlass(data: torch.Tensor, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`MetadataCutlass::create_compressed_representation`."""
    rows, columns = _rounded(rows, _WARP[0]), _rounded(columns, _WARP[1])
    bits = data.new_empty(rows * columns // 16, dtype=torch.int16)
    return _half(data, rows, columns), bits.view(columns // 32, rows, 2).permute(1, 2, 0)


def _for_cusparselt(
    data: torch.Tensor, rows: int, columns: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """`MetadataCuSparseLt::create_compressed_representation`: one storage for both."""
    if rows % 128 or columns % 128:
        raise RuntimeError("Only supports rows/cols multiples of 128")
    values, bits = rows * (columns // 2), rows * columns // 16
    both = data.new_empty(values + bits)
    return both, both[values:].view(rows // 128, columns // 32, 256)


def _masks(data: torch.Tensor) -> torch.Tensor:
    shares = [_rounded(size, warp) // _THREAD for size, warp in zip(data.shape, _WARP, strict=True)]
    return data.new_empty((*shares, 8), dtype=torch.uint8)


def _apply(data: torch.Tensor, masks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`_sparse_semi_structured_apply_typed`: the matrix and its transpose by known masks."""
    rows, columns = (_rounded(size, warp) for size, warp in zip(data.shape, _WARP, strict=True))
    return _half(data, rows, columns), _half(data, columns, rows)


def _apply_dense(data: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    """`sparse24_apply_dense_output`: by rows."""
    return data.new_empty(data.shape)


def _cusparselt_compress(dense: torch.Tensor) -> torch.Tensor:
    """`_cslt_compress`: values and bits in one vector."""
    return dense.new_empty(dense.numel() * _kept(dense) // 16)


def _kept(tensor: torch.Tensor) -> int:
    """Of 16 numbers, how many a compressed matrix has."""
    return 10 if tensor.element_size() == 1 else 9


def _cusparselt_product(
    compressed: torch.Tensor,
    dense: torch.Tensor,
    bias: torch.Tensor | None = None,
    alpha: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    transpose_result: bool = False,
    *_: int,
) -> torch.Tensor:
    """`_cslt_sparse_mm_impl`."""
    inner, columns = dense.shape
    rows = compressed.numel() * 16 // _kept(compressed) // inner
    shape = (columns, rows) if transpose_result else (rows, columns)
    return dense.new_empty(shape, dtype=out_dtype or dense.dtype)


def _half(like: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    return like.new_empty(rows, (columns + 1) // 2)


def _rounded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


KERNELS: dict[Any, Callable[..., Any]] = {
    aten._sparse_semi_structured_tile.default: _tile,
    aten._sparse_semi_structured_apply.default: _apply,
    aten._sparse_semi_structured_apply_dense.default: _apply_dense,
    aten._cslt_compress.default: _cusparselt_compress,
    aten._cslt_sparse_mm.default: _cusparselt_product,
}
