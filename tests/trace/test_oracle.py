"""A trace on fake CPU tensors allocates and frees what a real CPU run does, in the same order.

`docs/exactness.md` explains what is compared, and the differences that are by design.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from graphmem import TrainingStep
from graphmem.trace import TraceOptions
from graphmem.trace.loop import optimizer_named
from tests.house.test_fixtures import CASES, TINY, build
from tests.support import oracle
from tests.support.assumed_values import AssumedValues
from tests.support.autograd_programs import PROGRAMS, rows, training_step

MIXED_GROUP_NORM = ("unet_block", {"autocast": "bf16"})
"""The CPU normalises bf16 groups with fp32 weights in one kernel, whose meta kernel is wrong.
CUDA's autocast passes fp32 to it."""


def compare(make: Callable[[], TrainingStep], *, steps: int = 2, **options: Any) -> None:
    chosen = TraceOptions(steps=steps, subclass_like=True, **options)
    real, traced = oracle.run(make, chosen), oracle.traced_events(make, chosen)
    oracle.assert_agree(real, traced)


# ---- every fixture -------------------------------------------------------------------------------

FIXTURES = [case for case in CASES if case != MIXED_GROUP_NORM]


@pytest.mark.parametrize(("name", "settings"), FIXTURES, ids=str)
def test_fixture(name: str, settings: dict[str, Any]) -> None:
    compare(partial(build, name, **{**TINY[name], **settings}))


def test_a_fixture_whose_cpu_kernel_has_a_wrong_meta_kernel() -> None:
    name, settings = MIXED_GROUP_NORM
    with pytest.raises(AssertionError, match=r"real: .*native_group_norm_backward"):
        compare(partial(build, name, **{**TINY[name], **settings}))


# ---- routing -------------------------------------------------------------------------------------


class Experts(nn.Module):
    """Two of four experts for each token; each takes its tokens, if there are any."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(tokens).softmax(-1).topk(2)
        result = torch.zeros_like(tokens)
        for number in functional.one_hot(chosen, 4).sum((0, 1)).nonzero():
            rows, place = torch.where(chosen == number)
            expert = self.experts[int(number)]
            result.index_add_(0, rows, expert(tokens[rows]) * weights[rows, place, None])
        return result[result.abs().sum(-1) > 0]


def test_experts_agree_with_a_run_that_routes_as_assumed() -> None:
    def make() -> TrainingStep:
        torch.manual_seed(3)
        return TrainingStep(Experts(), torch.randn(10, 8), optimizer=optimizer_named("adam"))

    chosen, assumed = TraceOptions(steps=2, subclass_like=True), AssumedValues()
    with assumed.kept():
        traced = oracle.traced_events(make, chosen)
    with pytest.raises(AssertionError, match="differs"):
        oracle.assert_agree(oracle.run(make, chosen), traced)
    oracle.assert_agree(oracle.run(make, chosen, assumed), traced)


# ---- every optimizer -----------------------------------------------------------------------------


def linear_stack(optimizer: str | None = None, **changes: Any) -> TrainingStep:
    step = build("linear_stack", **TINY["linear_stack"])
    if optimizer is not None:
        step.optimizer = optimizer_named(optimizer)
    for name, value in changes.items():
        setattr(step, name, value)
    return step


@pytest.mark.parametrize("variant", ["", "-foreach", "-fused", "-single"])
@pytest.mark.parametrize("name", ["sgd", "sgd-momentum", "adam", "adamw"])
@pytest.mark.parametrize("keep_grads", [False, True], ids=["drop", "keep"])
def test_optimizer(name: str, variant: str, keep_grads: bool) -> None:
    compare(partial(linear_stack, name + variant), steps=3, keep_grads=keep_grads)


@pytest.mark.parametrize("keep_grads", [False, True], ids=["drop", "keep"])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_accumulation_and_clipping(keep_grads: bool, accumulate: int, clip: float | None) -> None:
    make = partial(linear_stack, "adamw", accumulate=accumulate, clip_grad_norm=clip)
    compare(make, steps=3, keep_grads=keep_grads)


def test_inference() -> None:
    compare(linear_stack, steps=3, inference=True)


# ---- corners of autograd that no fixture has -----------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    compare(partial(training_step, PROGRAMS[name]))


def test_torchscript() -> None:
    """The first two iterations are profiled; TorchScript differentiates the others itself."""

    def make() -> TrainingStep:
        def gelu_of_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return functional.gelu(functional.layer_norm(x, [8])) @ weight

        scripted = torch.jit.script(gelu_of_norm)  # forget the profile of the previous run

        def iterate(first: nn.Linear, second: nn.Linear) -> None:
            scripted(first(rows()), second.weight).sum().backward()

        return training_step(iterate)

    compare(make, steps=5)


def test_clipping_runs_the_same_operations_as_a_real_step() -> None:
    def make() -> TrainingStep:
        step = build("linear_stack", **TINY["linear_stack"])
        step.clip_grad_norm = 1.0
        return step

    options = TraceOptions(steps=1, subclass_like=True)
    real, traced = oracle.run(make, options).events, oracle.traced_events(make, options)
    norms = [event for event in real if event.where == "aten._foreach_norm.Scalar"]
    assert norms
    assert [event for event in traced if event.where == "aten._foreach_norm.Scalar"] == norms
