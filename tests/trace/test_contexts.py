"""What a custom function keeps in its context, without `save_for_backward`, is saved as well."""

from __future__ import annotations

from typing import Any

import torch

import graphmem

ROWS, WIDTH = 1024, 256
BYTES = ROWS * WIDTH * 4


class Keeps(torch.autograd.Function):
    """Keeps a tensor, and a list of two."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.doubled = x * 2
        ctx.others = [x + 1, {"tripled": x * 3}]
        ctx.scale = 2.0
        ctx.circular = [ctx.scale]
        ctx.circular.append(ctx.circular)
        return x.sum()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        first, rest = ctx.others
        return ctx.doubled * first * rest["tripled"] * gradient * ctx.scale


def test_tensors_in_a_context_are_activations_with_its_name() -> None:
    with graphmem.virtual_gpu("t4") as gpu:
        keep: Any = Keeps.apply
        weight = torch.ones(ROWS, WIDTH, device="cuda", requires_grad=True)
        for _ in range(2):
            weight.grad = None
            keep(weight).backward()
    report = gpu.report()

    kept = {each.reason for each in report.at_peak.holders if each.bytes == BYTES}
    names = ("doubled", "others[0]", "others[1]['tripled']")
    assert {f"saved for the backward pass by KeepsBackward.{name}" for name in names} <= kept
    assert report.saved_for_backward == len(names) * BYTES
