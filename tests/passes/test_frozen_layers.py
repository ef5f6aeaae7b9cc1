"""What frozen layers do not save, and why, as the backpropagation article states it
(docs/sources.md)."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from graphmem.analysis import Analysis, Request, run_analysis
from graphmem.changes import Changes
from graphmem.changes.messages import NothingToFreezeError
from graphmem.passes.frozen_layers import LINEAR, NEEDED, NOTHING_UPSTREAM
from tests.support.places import FIXTURES

STACK = f"{FIXTURES / 'linear_stack'}.py:build"
ONE = 64 * 100 * 4
"""Bytes of one activation of the stack."""


def analyzed(*freeze: str, relu: bool = False, layers: int = 8) -> Analysis:
    settings = {"layers": str(layers), "relu": str(relu).lower()}
    request = Request(steps=1, settings=settings, changes=Changes(freeze=freeze))
    return run_analysis(STACK, request)


def reasons(analysis: Analysis) -> dict[str, str]:
    return {each.module: each.reason for each in analysis.annotations["frozen_layers"].layers}


def test_frozen_linear_layers_store_nothing() -> None:
    analysis = analyzed("[1-8]")
    layers = analysis.annotations["frozen_layers"].layers

    assert {each.kept_bytes for each in layers} == {0}
    assert sum(each.pruned_bytes for each in layers) == 8 * ONE
    assert set(reasons(analysis).values()) == {LINEAR.format("MmBackward0.self")}
    assert analysis.report.saved_for_backward == 2 * ONE


def test_frozen_linear_layers_with_relu_between_store_its_results() -> None:
    analysis = analyzed("1", "3", "5", "7", relu=True, layers=4)
    found = reasons(analysis)

    assert found["2"] == NEEDED.format("ReluBackward0", "result")
    assert "linear in the input" in found["3"]
    kept = {each.module: each.kept_bytes for each in analysis.annotations["frozen_layers"].layers}
    assert (kept["2"], kept["3"]) == (ONE, 0)


def test_with_everything_upstream_frozen_they_store_nothing() -> None:
    analysis = analyzed("[0-8]", relu=True, layers=4)

    found = reasons(analysis)
    assert set(found.values()) == {NOTHING_UPSTREAM}
    assert analysis.report.saved_for_backward == ONE  # the last layer's input


def test_gradients_and_optimizer_state_follow() -> None:
    """The first and the last layer train: 100x100 + 100 and 10x100 + 10 elements."""
    model = analyzed("[1-8]").report.model
    trained = 4 * (100 * 100 + 100 + 10 * 100 + 10)

    assert model.gradient_bytes == trained
    assert model.optimizer_state_bytes == 2 * trained


def test_freezing_by_pattern_is_freezing_in_the_model() -> None:
    settings = {"layers": "8", "freeze_start": "0", "freeze_end": "8"}
    frozen = run_analysis(STACK, Request(steps=1, settings=settings)).report

    assert analyzed("[1-8]").report.peak == frozen.peak


def test_a_pattern_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(NothingToFreezeError):
        analyzed("nothing")


def test_a_fully_trained_model_has_no_finding() -> None:
    assert not analyzed().annotations["frozen_layers"].layers


def test_layers_around_a_frozen_one_are_not_listed() -> None:
    """One in the middle is frozen, and a ReLU follows it; all others train."""
    analysis = analyzed("5", relu=True, layers=4)

    assert list(reasons(analysis)) == ["5", "6"]


def test_equal_layers_are_one_line() -> None:
    (found,) = (
        each.lines for each in analyzed("[1-8]").report.findings if each.found_by == "frozen_layers"
    )

    kept = f"(pruned {8 * ONE / 1024:.1f} KiB, kept 0 B)"
    assert found == [f"[1-8]: {LINEAR.format('MmBackward0.self')} {kept}"]


def test_a_factor_never_trains_so_nothing_is_pruned_for_it() -> None:
    """`x * 2` needs `x` for the gradient of 2 alone."""

    class Doubled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * 2).relu()

    def build() -> tuple[nn.Module, torch.Tensor]:
        frozen = nn.Linear(100, 100).requires_grad_(False)
        model = nn.Sequential(nn.Linear(100, 100), frozen, Doubled(), nn.Linear(100, 100))
        return model, torch.randn(64, 100)

    layers = run_analysis(build, Request(steps=1)).annotations["frozen_layers"].layers
    assert {each.module: (each.pruned_bytes, each.kept_bytes) for each in layers} == {
        "1": (ONE, 0),
        "2": (0, ONE),
    }


def test_a_layer_whose_input_is_saved_by_its_adapter_makes_no_finding() -> None:
    """As LoRA's: not saving it prunes nothing."""

    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(100, 100).requires_grad_(False)
            self.adapter = nn.Linear(100, 100)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.base(x) + self.adapter(x)
            return output

    def build() -> tuple[nn.Module, torch.Tensor]:
        return nn.Sequential(nn.Linear(100, 100), Adapted()), torch.randn(64, 100)

    analysis = run_analysis(build, Request(steps=1))
    assert reasons(analysis) == {"1.base": LINEAR.format("AddmmBackward0.mat1")}
    assert "frozen_layers" not in {each.found_by for each in analysis.report.findings}


def test_a_frozen_copy_that_does_not_run_makes_no_finding() -> None:
    """As an average of the weights is kept for evaluation."""

    def build() -> tuple[nn.Module, torch.Tensor]:
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        model.average = nn.Linear(8, 8).requires_grad_(False)
        model.forward = lambda x: model[2](model[1](model[0](x)))  # type: ignore[method-assign]
        return model, torch.randn(4, 8)

    assert not run_analysis(build, Request(steps=1)).annotations["frozen_layers"].layers


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_what_checkpointing_computes_again_is_not_saved_by_freezing(use_reentrant: bool) -> None:
    """SiLU is not linear: only the two frozen layers around it need the weight alone, and where a
    reentrant checkpoint begins, nothing at all has a gradient."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [nn.Linear(100, 100) for _ in range(3)]
            self.layers = nn.Sequential(*layers[:2], nn.SiLU(), layers[2])
            self.layers[1:].requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = checkpoint(self.layers, x, use_reentrant=use_reentrant)
            return output

    def build() -> tuple[nn.Module, torch.Tensor]:
        return Block(), torch.randn(64, 100, requires_grad=True)

    found = {
        line
        for each in run_analysis(build, Request(steps=1)).report.findings
        if each.found_by == "frozen_layers"
        for line in each.lines
    }
    linear = LINEAR.format("AddmmBackward0.mat1")
    pruned = f"(pruned {2 * ONE / 1024:.1f} KiB, kept 0 B)"
    assert found == (set() if use_reentrant else {f"layers.[1,3]: {linear} {pruned}"})
