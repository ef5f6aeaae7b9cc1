"""A trace on fake CPU tensors allocates and frees what a real CPU run does, in the same order.

`docs/exactness.md` explains what is compared, and the differences that are by design.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
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
from tests.trace.test_engine_rules import SLOW_IN_ORACLE
from tests.verify.test_recorded_steps import ACTIVATIONS, TECHNIQUES

MIXED_GROUP_NORM = ("unet_block", {"autocast": "bf16"})
"""The CPU normalises bf16 groups with fp32 weights in one kernel, whose meta kernel is wrong.
CUDA's autocast passes fp32 to it."""


def compare(make: Callable[[], TrainingStep], *, steps: int = 2, **options: Any) -> None:
    chosen = TraceOptions(steps=steps, subclass_like=True, **options)
    real, traced = oracle.run(make, chosen), oracle.traced_events(make, chosen)
    oracle.assert_agree(real, traced)


# ---- every fixture -------------------------------------------------------------------------------

SLOW = [
    ("llama", {"checkpoint": "non-reentrant"}),
    ("vit", {"autocast": "bf16"}),
    ("moe", {"autocast": "bf16"}),
    ("transformers_model", {"family": "qwen2"}),
    ("transformers_model", {"family": "gpt_neox"}),
]
"""Other fixtures and settings have their operations."""


def fixture(name: str, settings: dict[str, Any]) -> Any:
    """Slow is also what test_recorded_steps.py compares with a card, in less time."""
    step = name.replace("training_techniques", "technique")
    recorded = [f"{step}_{each}" in ACTIVATIONS + TECHNIQUES for each in settings.values()]
    is_slow = any(recorded) or (name, settings) in SLOW
    marks = [pytest.mark.slow] * is_slow
    return pytest.param(name, settings, marks=marks, id=f"{name}-{settings}")


@pytest.mark.parametrize(
    ("name", "settings"), [fixture(*case) for case in CASES if case != MIXED_GROUP_NORM]
)
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


def optimizers() -> Iterator[Any]:
    """Each name and each variant with each way to clear gradients; all other pairs are slow."""
    names, variants = (
        ("sgd", "sgd-momentum", "adam", "adamw"),
        ("", "-foreach", "-fused", "-single"),
    )
    for keep_grads, name, variant in product(range(2), range(4), range(4)):
        is_slow = (keep_grads + name + variant) % 4 > 0
        yield pytest.param(
            *(names[name], variants[variant], bool(keep_grads)),
            marks=[pytest.mark.slow] * is_slow,
            id=f"{'keep' if keep_grads else 'drop'}-{names[name]}-{variants[variant]}",
        )


@pytest.mark.parametrize(("name", "variant", "keep_grads"), list(optimizers()))
def test_optimizer(name: str, variant: str, keep_grads: bool) -> None:
    compare(partial(linear_stack, name + variant), steps=3, keep_grads=keep_grads)


@pytest.mark.parametrize(
    ("clip", "accumulate", "keep_grads"),
    [
        (None, 1, True),
        (None, 3, False),
        (1.0, 1, False),
        (1.0, 3, True),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [(None, 1, False), (None, 3, True), (1.0, 1, True), (1.0, 3, False)]
        ),
    ],
)
def test_accumulation_and_clipping(keep_grads: bool, accumulate: int, clip: float | None) -> None:
    make = partial(linear_stack, "adamw", accumulate=accumulate, clip_grad_norm=clip)
    compare(make, steps=3, keep_grads=keep_grads)


def test_inference() -> None:
    compare(linear_stack, steps=3, inference=True)


# ---- corners of autograd that no fixture has -----------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in SLOW_IN_ORACLE else [])
        for name in PROGRAMS
    ],
)
def test_program(name: str) -> None:
    compare(partial(training_step, PROGRAMS[name]))


class DistanceToLabels(nn.Linear):
    """As in Pi0, the loss is called with the labels first."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(2 * labels, super().forward(x))


def test_a_loss_of_real_labels_and_fake_predictions() -> None:
    def make() -> TrainingStep:
        labels = torch.tensor([[0.5] * 8] * 4)  # numbers that are given stay real on the CPU
        return TrainingStep(DistanceToLabels(8, 8), (torch.randn(4, 8), labels))

    compare(make)


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
