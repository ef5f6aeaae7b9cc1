"""Training with 2:4 sparse matrices: what compressing one takes, and a product with it."""

from __future__ import annotations

import pytest
import torch

import graphmem

ROWS, COLUMNS = 256, 512
BITS = ROWS * COLUMNS // 16 * 2
"""16 numbers have 16 bits that say which halves of four are kept."""
HALF = ROWS * COLUMNS // 2 * 2
MASKS = ROWS // 8 * COLUMNS // 8 * 8
"""8 bytes for 8 x 8 numbers (SparseSemiStructuredPack.h, `Tile8x8Masks`)."""


@pytest.mark.parametrize("use_cutlass", [True, False])
def test_a_matrix_is_compressed_with_its_transpose(use_cutlass: bool) -> None:
    with graphmem.virtual_gpu("a100") as gpu:
        dense = torch.ones(ROWS, COLUMNS, dtype=torch.float16, device="cuda")
        before = gpu.allocated
        made = torch._sparse_semi_structured_tile(dense, algorithm="", use_cutlass=use_cutlass)
        assert gpu.allocated - before == 2 * (HALF + BITS) + MASKS
        assert made[0].numel() == ROWS * COLUMNS * (8 if use_cutlass else 9) // 16
        assert made[4].shape == (ROWS // 8, COLUMNS // 8, 8)


def test_a_pattern_is_applied_to_a_gradient() -> None:
    with graphmem.virtual_gpu("a100") as gpu:
        dense = torch.ones(ROWS, COLUMNS, dtype=torch.bfloat16, device="cuda")
        masks = torch._sparse_semi_structured_tile(dense)[4]
        before = gpu.allocated
        packed = torch._sparse_semi_structured_apply(dense, masks)
        assert gpu.allocated - before == 2 * HALF
        assert [each.shape for each in packed] == [(256, 256), (512, 128)]


@pytest.mark.parametrize("transposed", [False, True])
def test_a_product_by_cusparselt_has_the_rows_of_the_matrix(transposed: bool) -> None:
    """The compressed matrix is a vector of 9 of 16 numbers, which torch's meta kernel takes as
    it is: it makes as many rows.
    """
    with graphmem.virtual_gpu("a100") as gpu:
        dense = torch.ones(ROWS, COLUMNS, dtype=torch.float16, device="cuda")
        compressed = torch._sparse_semi_structured_tile(dense, use_cutlass=False)[0]
        bias = torch.ones(ROWS, dtype=torch.float16, device="cuda")
        right = torch.ones(COLUMNS, 64, dtype=torch.float16, device="cuda")
        made = torch._cslt_sparse_mm(compressed, right, bias=bias, transpose_result=transposed)
        assert made.shape == ((64, ROWS) if transposed else (ROWS, 64))
    left_out = " ".join(str(each) for each in gpu.report().assumptions)
    assert "cuSPARSELt's workspace" in left_out


@pytest.mark.parametrize("use_cutlass", [False, True])
def test_a_dense_weight_is_compressed_for_inference(use_cutlass: bool) -> None:
    """`to_sparse_semi_structured`, and a layer that has such a weight."""
    from torch.sparse import SparseSemiStructuredTensor as Sparse
    from torch.sparse import to_sparse_semi_structured

    kept = Sparse._FORCE_CUTLASS
    try:
        Sparse._FORCE_CUTLASS = use_cutlass
        with graphmem.virtual_gpu("a100") as gpu, torch.inference_mode():
            layer = torch.nn.Linear(COLUMNS, ROWS, bias=False, dtype=torch.float16, device="cuda")
            layer.weight = torch.nn.Parameter(to_sparse_semi_structured(layer.weight))
            assert gpu.allocated == HALF + BITS
            x = torch.ones(64, COLUMNS, dtype=torch.float16, device="cuda")
            assert layer(x).shape == (64, ROWS)
    finally:
        Sparse._FORCE_CUTLASS = kept
