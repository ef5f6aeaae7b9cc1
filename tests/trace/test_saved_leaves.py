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


class LooksAtWeight(torch.autograd.Function):
    """Says whether it gets the parameter itself."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, found: list[Any]) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.found = found
        return x * weight

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        ctx.found.append(weight)
        return grads[0] * weight, grads[0] * x, None


def test_a_function_gets_a_parameter_on_the_host_itself() -> None:
    weight, found = nn.Parameter(torch.ones(3)), []
    with graphmem.virtual_gpu("t4"):
        inputs = torch.ones(3, requires_grad=True)
        LooksAtWeight.apply(inputs, weight, found).sum().backward()  # type: ignore[no-untyped-call]

    assert found[0] is weight


class SavesView(torch.autograd.Function):
    """Saves a view that is made without gradients of an argument that requires one."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x.view(-1))
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (view,) = ctx.saved_tensors
        assert view.requires_grad
        return grads[0] * view.view(grads[0].shape)


def test_a_view_that_a_function_saved_is_one_on_a_card() -> None:
    """No graph leads through it to the leaf, as in a real run on the CPU."""
    with graphmem.virtual_gpu("t4"):
        x = torch.ones(4, 8, device="cuda", requires_grad=True)
        y: Any = SavesView.apply(x * 1)  # type: ignore[no-untyped-call]
        (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        grad.square().sum().backward()
        assert x.grad is None
