"""Backward passes that compiled autograd compiles as a whole.

`tests/trace/test_fuzz.py` compares some with real ones on the CPU, `tools/accuracy_programs.py` a
rank with a real one on a card.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo import compiled_autograd

import graphmem
from graphmem import TrainingStep
from graphmem.report import Report
from tests.support.sizes import KEPT_WORKSPACES

WORKSPACE = 8_519_680
"""Of each thread's cuBLAS handle (`parseChosenWorkspaceSize`, aten/src/ATen/cuda)."""


def report_of(step: Callable[[nn.Module, torch.Tensor], Any]) -> Report:
    """Of a step on a layer without bias, 64 wide."""

    def build() -> TrainingStep:
        model = nn.Linear(64, 64, bias=False).cuda()
        x = torch.randn(64, 64, device="cuda")
        return TrainingStep(model=model, step=lambda: step(model, x))

    return graphmem.analyze(build, steps=2, env=KEPT_WORKSPACES)


def compile_whole(step: Callable[[], None]) -> None:
    with compiled_autograd._enable(lambda graph: torch.compile(graph, backend="aot_eager")):
        step()


def is_told(report: Report) -> bool:
    return any(each.what == "compiled autograd" for each in report.assumptions)


def test_the_calling_thread_runs_it() -> None:
    """`Engine::execute` (torch/csrc/autograd/engine.cpp) calls the compiler before its threads."""

    def walked(model: nn.Module, x: torch.Tensor) -> None:
        model(x).sum().backward()

    def compiled(model: nn.Module, x: torch.Tensor) -> None:
        compile_whole(lambda: walked(model, x))

    holders = [report_of(step).at_peak.holders for step in (walked, compiled)]

    assert [sum(each.bytes == WORKSPACE for each in held) for held in holders] == [2, 1]


def test_a_graph_is_compiled_once_though_the_first_one_comes_amid_a_pass() -> None:
    """The engine keeps it, as on a CPU, when the compiler is switched on for the card."""
    graphs = list[torch.fx.GraphModule]()

    def compiler(graph: torch.fx.GraphModule) -> Callable[..., Any]:
        graphs.append(graph)
        compiled: Callable[..., Any] = torch.compile(graph, backend="aot_eager")
        return compiled

    def step(model: nn.Module, x: torch.Tensor) -> None:
        with compiled_autograd._enable(compiler):
            model(x).sum().backward()
        model.zero_grad()

    report_of(step)
    on_the_card = len(graphs)
    torch._dynamo.reset()
    for _ in range(2):
        step(nn.Linear(64, 64, bias=False), torch.randn(64, 64))

    assert on_the_card == len(graphs) - on_the_card == 1


@pytest.mark.parametrize("is_on", [True, False], ids=["within", "after"])
def test_hooks_of_the_program_run(*, is_on: bool) -> None:
    calls = list[str]()

    def step(model: nn.Module, x: torch.Tensor) -> None:
        losses = list[torch.Tensor]()

        def train() -> None:
            y = model(x)
            y.register_hook(lambda gradient: calls.append("tensor"))
            y.grad_fn.register_prehook(lambda gradients: calls.append("node"))
            y.grad_fn.register_hook(lambda *gradients: calls.append("removed")).remove()
            losses.append(y.sum())
            if is_on:
                losses.pop().backward()

        compile_whole(train)
        if not is_on:
            losses.pop().backward()

    report = report_of(step)

    assert calls == ["tensor", "node"] * 2
    assert not is_told(report)


def test_what_it_saves_is_named() -> None:
    """16 KiB: the layer's input is saved, and no variable of the program holds it."""

    def step(model: nn.Module, x: torch.Tensor) -> None:
        compile_whole(lambda: model(x * 2).sum().backward())

    report = report_of(step)

    assert report.saved_for_backward == 64 * 64 * 4
    assert not is_told(report)


def test_a_parameter_is_one_though_it_is_saved() -> None:
    """The optimizer that names it is known at its first step, after the pass that saved it."""

    def build() -> TrainingStep:
        weight = torch.randn(64, 64, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        x = torch.randn(64, 64, device="cuda", requires_grad=True)

        def step() -> None:
            compile_whole(lambda: (x @ weight).sum().backward())
            optimizer.step()

        return TrainingStep(step=step)

    report = graphmem.analyze(build, steps=1)

    assert report.at_peak.by_category["parameter"] == 64 * 64 * 4


def test_it_is_told_if_the_forward_pass_ran_before_it_was_on() -> None:
    def step(model: nn.Module, x: torch.Tensor) -> None:
        loss = model(x * 2).sum()
        compile_whole(loss.backward)

    assert is_told(report_of(step))


def test_it_is_told_if_the_forward_pass_wrote_into_a_view() -> None:
    def step(model: nn.Module, x: torch.Tensor) -> None:
        def train() -> None:
            y = model(x)
            y[0] = 1
            y.sum().backward()

        compile_whole(train)

    assert is_told(report_of(step))


def test_a_backward_pass_after_it_was_on_frees_what_was_saved() -> None:
    """As if it had never been on: the configuration turns it on in compiled functions alone."""

    def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(model(x * 2).exp()).sum()
        return loss

    def before(model: nn.Module, x: torch.Tensor) -> None:
        losses = list[torch.Tensor]()
        compile_whole(lambda: losses.append(loss_of(model, x)))
        losses.pop().backward()

    reports = [
        report_of(before),
        report_of(lambda model, x: loss_of(model, x).backward()),
    ]

    assert len({each.peak.allocated for each in reports}) == 1
    assert len({each.saved_for_backward for each in reports}) == 1
    assert not is_told(reports[0])


def test_the_configuration_turns_it_on_while_a_compiled_function_runs() -> None:
    """`_TorchDynamoContext.__init__` (torch/_dynamo/eval_frame.py)."""
    passes = list[bool]()

    class Seen(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            passes.append(compiled_autograd.in_compiled_autograd_region)
            return gradient

    def step(model: nn.Module, x: torch.Tensor) -> None:
        def train() -> None:
            Seen.apply(model(x)).sum().backward()

        train()
        torch.compile(train, backend="eager")()

    with torch._dynamo.config.patch(compiled_autograd=True):
        report_of(step)

    assert passes[0] is False
    assert True in passes
