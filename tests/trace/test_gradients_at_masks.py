"""Gradients of mask selections, computed as on a card."""

from __future__ import annotations

import torch
from torch.nn import functional

from tests.support.traced_step import traced


def test_the_gradient_of_masked_scatter_is_a_selection() -> None:
    """`masked_scatter_backward`; recording sft_dft of fixtures/cuda/public."""

    def step() -> None:
        mask = torch.tensor([True, False, True, True], device="cuda")
        given = torch.randn(3, device="cuda", requires_grad=True)
        torch.zeros(4, device="cuda").masked_scatter(mask, given).sum().backward()
        assert given.grad is not None
        assert given.grad.shape == (3,)

    targets = [op.target for op in traced(step, gpu="h100").ops]
    assert "aten.masked_select.default" in targets
    assert "aten.masked_scatter_backward.default" not in targets


def test_the_gradient_at_a_mask_finds_the_positions_itself() -> None:
    def step() -> None:
        mask = torch.tensor([[True, False], [True, True]], device="cuda")
        rows = torch.randn(2, 2, 8, device="cuda", requires_grad=True)
        rows[mask].sum().backward()

    ops = traced(step, gpu="h100").ops
    assert [op.target for op in ops].count("aten.nonzero.default") == 1  # of the forward pass
    assert any("index_put" in op.target for op in ops)


def test_a_mask_dies_once_it_is_padded() -> None:
    """Recording dpo_fp32: `a 2841728, …, a 2898944, f 2841728`, then attention."""

    def step() -> None:
        heads = torch.randn(2, 4, 13, 8, device="cuda", requires_grad=True)
        seen = torch.ones(2, 1, 13, 13, dtype=torch.bool, device="cuda")
        functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=seen)

    graph = traced(step, gpu="h100")
    attention = next(op for op in graph.ops if "efficient_attention" in op.target)
    [made] = [each for each in graph.storages if each.nbytes == 2 * 13 * 13 * 4]
    assert made.death is not None
    assert made.death <= attention.tick
