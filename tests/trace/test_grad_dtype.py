"""`Tensor.grad_dtype`: gradients in another dtype than their parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import graphmem
from graphmem import TrainingStep
from graphmem.trace import TraceOptions
from tests.support.oracle import assert_agree, run, traced_events

WIDTH = 512

pytestmark = pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="new in torch 2.10")


def model_with(grad_dtype: torch.dtype | None) -> nn.Module:
    layers = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
    model = nn.Sequential(*layers).bfloat16()
    for weight in model.parameters():
        weight.grad_dtype = grad_dtype
    return model


@pytest.mark.parametrize("grad_dtype", [torch.float32, torch.bfloat16, None])
def test_gradients_are_cast_as_by_the_real_engine(grad_dtype: torch.dtype | None) -> None:
    def build() -> TrainingStep:
        model = model_with(grad_dtype)
        rows = torch.randn(8, WIDTH, dtype=torch.bfloat16)

        def step() -> None:
            for micro_batch in rows.split(4):
                model(micro_batch).float().sum().backward()
            model.zero_grad()

        return TrainingStep(model=model, step=step)

    options = TraceOptions(steps=2)
    assert_agree(run(build, options), traced_events(build, options))


@pytest.mark.skipif(
    not hasattr(torch.autograd.function.FunctionCtx, "set_output_grad_dtype"),
    reason="new in torch 2.14",
)
@pytest.mark.parametrize("grad_dtype", [torch.float32, torch.bfloat16, None])
def test_a_function_gets_gradients_as_from_the_real_engine(grad_dtype: torch.dtype | None) -> None:
    class Narrowed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, wide: torch.Tensor) -> torch.Tensor:
            ctx.set_output_grad_dtype(grad_dtype)
            return wide.bfloat16()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
            return gradient.float()

    def build() -> TrainingStep:
        model = nn.Linear(WIDTH, WIDTH)

        def step() -> None:
            Narrowed.apply(model(torch.randn(4, WIDTH))).sum().backward()
            model.zero_grad()

        return TrainingStep(model=model, step=step)

    options = TraceOptions(steps=2)
    assert_agree(run(build, options), traced_events(build, options))


def test_a_parameter_keeps_it_when_it_moves() -> None:
    with graphmem.virtual_gpu("t4"):
        model: Any = model_with(torch.float32).cuda()
        before = torch.cuda.memory_allocated()
        model(torch.randn(4, WIDTH, dtype=torch.bfloat16, device="cuda")).sum().backward()

        assert [weight.grad.dtype for weight in model.parameters()] == 3 * [torch.float32]
        with_gradients = torch.cuda.memory_allocated()
        model.zero_grad()
        assert with_gradients - torch.cuda.memory_allocated() == 3 * WIDTH * WIDTH * 4
        assert before == 3 * WIDTH * WIDTH * 2
