"""What `.data =` does to saved parameters, and what functions get from `ctx.saved_tensors`.

`swapped_while_it_was_saved` in `autograd_programs.py` is compared with real runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import graphmem
from graphmem import TrainingStep

LAYERS, ROWS, WIDTH = 8, 16, 256


class SavesWeight(torch.autograd.Function):
    """DeepSpeed's `LinearFunctionForZeroStage3`, which saves the weight, not a view of it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        if not weight.numel():
            gather(weight)
        weight.main_grad.addmm_(x.t(), grads[0])
        result = grads[0] @ weight.t()
        release(weight)
        return result, None


def gather(weight: Any) -> None:
    weight.data = torch.zeros(WIDTH, WIDTH, device=weight.device)


def release(weight: Any) -> None:
    weight.data = torch.zeros(0, device=weight.device)


def sharded() -> TrainingStep:
    """Layers whose weights are on the card only while they run."""
    weights: list[Any] = [nn.Parameter(torch.zeros(0, device="cuda")) for _ in range(LAYERS)]
    for weight in weights:
        weight.main_grad = torch.zeros(WIDTH, WIDTH, device="cuda")
    inputs = torch.randn(ROWS, WIDTH, device="cuda", requires_grad=True)

    def step() -> None:
        x = inputs
        for weight in weights:
            gather(weight)
            x = SavesWeight.apply(x, weight)
            release(weight)
        x.sum().backward()

    return TrainingStep(model=nn.ParameterList(weights), step=step)


def test_a_released_parameter_is_not_saved_and_keeps_its_attributes() -> None:
    report = graphmem.analyze(sharded, steps=2)

    one_weight, one_input = WIDTH * WIDTH * 4, ROWS * WIDTH * 4
    assert report.saved_for_backward == LAYERS * one_input
    # gradients, inputs and results, one weight and its successor, and less than half a weight
    held = LAYERS * one_weight + (LAYERS + 1) * one_input
    workspaces = report.at_peak.by_category["workspace"]
    assert held + one_weight <= report.peak.allocated - workspaces < held + 2.5 * one_weight
