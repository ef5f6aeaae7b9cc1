"""Matrix products with an `out_dtype`, which run on the virtual GPU as on a card."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.support.traced_step import traced

ROWS, INNER, COLUMNS, BATCH = 64, 32, 48, 4
Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

pytestmark = pytest.mark.skipif(
    "dtype" not in torch.ops.aten.mm.overloads(), reason="torch has no `out_dtype`"
)


def _product_of(product: Product, *batch: int) -> list[int]:
    """The bytes each operation of a product allocates."""

    def step() -> None:
        sums = torch.zeros(*batch, ROWS, COLUMNS, device="cuda")
        left = torch.zeros(*batch, ROWS, INNER, device="cuda", dtype=torch.bfloat16)
        right = torch.zeros(*batch, INNER, COLUMNS, device="cuda", dtype=torch.bfloat16)
        made = product(sums, left, right)
        assert made.dtype == torch.float32
        assert made.shape == sums.shape

    graph = traced(step, gpu="h100")
    return [
        sum(graph.storages[born].nbytes for born in op.births)
        for op in graph.ops
        if "mm.dtype" in op.target
    ]


@pytest.mark.parametrize(
    "product",
    [
        lambda _sums, left, right: torch.mm(left, right, out_dtype=torch.float32),
        lambda sums, left, right: torch.addmm(sums, left, right, out_dtype=torch.float32),
        lambda sums, left, right: torch.addmm(sums, left, right, torch.float32, beta=0.5),
    ],
)
def test_a_product_is_computed_in_its_dtype(product: Product) -> None:
    assert _product_of(product) == [ROWS * COLUMNS * 4]


@pytest.mark.parametrize(
    "product",
    [
        lambda _sums, left, right: torch.bmm(left, right, out_dtype=torch.float32),
        lambda sums, left, right: torch.baddbmm(sums, left, right, out_dtype=torch.float32),
    ],
)
def test_a_batched_product_is_computed_in_its_dtype(product: Product) -> None:
    assert _product_of(product, BATCH) == [BATCH * ROWS * COLUMNS * 4]


def test_a_product_into_a_given_tensor_allocates_nothing() -> None:
    """As TRL 1.16 accumulates gradients (trl/kernels/chunked_logprob.py, `_addmm_fp32`)."""
    float32 = torch.float32
    assert _product_of(
        lambda sums, left, right: torch.addmm(sums, left, right, out_dtype=float32, out=sums)
    ) == [0]
    assert _product_of(
        lambda sums, left, right: torch.bmm(left, right, out_dtype=float32, out=sums), BATCH
    ) == [0]


def test_operands_must_match() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        _product_of(lambda _sums, left, _right: torch.mm(left, left, out_dtype=torch.float32))
