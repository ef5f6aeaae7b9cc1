"""Autocast's policies, compared with PyTorch's own test lists and its dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.autocast_test_lists import AutocastTestLists

from graphmem import TrainingStep
from graphmem.gpus import find_gpu
from graphmem.graph import StepGraph
from graphmem.op_states import AutocastState
from graphmem.passes.autocast import AutocastFindings
from graphmem.passes.autocast_policies import NoHeaderError, Policy, policies
from graphmem.pipeline import passes_for, run_passes
from graphmem.runtime import Runtime
from graphmem.torch_releases import installed_release
from graphmem.trace import TraceOptions, trace
from tests.support.traced_step import traced as graph_of

RUNTIME = Runtime(find_gpu("a100"), "2.13.0")
NOT_TRACED = {
    "_thnn_fused_lstm_cell": "PyTorch has no meta kernel for it",
    "_thnn_fused_gru_cell": "PyTorch has no meta kernel for it",
    "einsum": "the list has matrices for an equation of four letters",
    "gru_cell": "it calls _thnn_fused_gru_cell",
    "cudnn_convolution": "PyTorch has no meta kernel for it",
    "cudnn_convolution_transpose": "PyTorch has no meta kernel for it",
}
LISTS = {
    "torch_fp16": (torch, Policy.LOWER_PRECISION),
    "torch_fp32": (torch, Policy.FP32),
    "torch_need_autocast_promote": (torch, Policy.WIDEST),
    "nn_fp16": (torch._C._nn, Policy.LOWER_PRECISION),
    "nn_fp32": (torch._C._nn, Policy.FP32),
    "linalg_fp16": (torch._C._linalg, Policy.LOWER_PRECISION),
    "methods_fp16": (None, Policy.LOWER_PRECISION),
    "methods_fp32": (None, Policy.FP32),
}


def cases() -> list[Any]:
    lists = AutocastTestLists(torch.device("cpu"))
    return [
        pytest.param(name, position, id=f"{name}-{case[0]}")
        for name in LISTS
        for position, case in enumerate(getattr(lists, name))
    ]


def traced(step: Callable[[], Any]) -> tuple[StepGraph, AutocastFindings]:
    graph = graph_of(step, gpu="a100")
    findings: AutocastFindings = run_passes(graph, RUNTIME, passes_for("autocast"))["autocast"]
    return graph, findings


def test_a_torch_without_headers_is_an_error_with_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As where a container's layer has lost torch/include."""
    monkeypatch.setattr("graphmem.passes.autocast_policies._HEADER", tmp_path / "autocast_mode.h")

    with pytest.raises(NoHeaderError, match=r"lacks .*autocast_mode\.h") as error:
        policies.__wrapped__()

    assert "install torch again" in str(error.value.hint)


@pytest.mark.parametrize(("name", "position"), cases())
def test_policies_agree_with_pytorchs_lists_operator_by_operator(name: str, position: int) -> None:
    """The operator is called as in PyTorch's own test; some operation has its policy."""
    module, expected = LISTS[name]

    def step() -> None:
        operator, arguments, *options = getattr(AutocastTestLists(torch.device("cuda")), name)[
            position
        ]
        if operator in NOT_TRACED:
            pytest.skip(NOT_TRACED[operator])
        if operator == "_convolution" and installed_release() < (2, 13):
            pytest.skip("it had no meta kernel until 2.13")
        call = getattr(module or arguments[0], operator)
        given = arguments if module is not None else arguments[1:]
        keywords = next((each for each in options if isinstance(each, dict)), {})
        with torch.autocast("cuda", dtype=torch.float16):
            call(*given, **keywords)

    graph, findings = traced(step)
    in_region = [op for op in graph.ops if op.autocast is AutocastState.ON]

    assert expected in {findings.policies[op.index] for op in in_region}


def test_the_lists_name_the_operators_that_the_dispatcher_has_a_kernel_for() -> None:
    """Every operator with a kernel under AutocastCUDA, and no other.

    A CUDA build has one more (aten/src/ATen/cudnn/AutocastRNN.cpp), which the virtual GPU's
    recurrent layers do not need: they cast before they call the operator.
    """
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    registered = {
        name.removeprefix("aten::").partition(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and has_kernel(name, "AutocastCUDA")
    }

    assert registered - set(policies()) - {"_cudnn_rnn"} == {"binary_cross_entropy"}
    assert set(policies()) - registered == set()


def test_an_operator_outside_of_the_lists_has_no_policy() -> None:
    def step() -> None:
        with torch.autocast("cuda", dtype=torch.float16):
            torch.ones(4, device="cuda").relu()

    _, findings = traced(step)

    assert set(findings.policies) == {Policy.NONE}
    assert not findings.casts


def test_an_autocast_region_that_is_never_left_ends_with_the_trace() -> None:
    """It is thread state; the next trace would start inside it."""

    def step() -> None:
        torch.autocast("cuda", dtype=torch.float16).__enter__()
        torch.ones(4, device="cuda").relu()

    graph, _ = traced(step)

    assert graph.ops[-1].autocast is AutocastState.ON
    assert not torch.is_autocast_enabled("cuda")


class Twice(nn.Module):
    """Uses one weight twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.layer(x)).float()


def linear_under_autocast() -> tuple[StepGraph, AutocastFindings]:
    def build() -> TrainingStep:
        return TrainingStep(model=Twice(), inputs=torch.randn(32, 64), autocast="fp16")

    graph = trace(build, gpu=find_gpu("a100"), options=TraceOptions(steps=1))
    findings: AutocastFindings = run_passes(graph, RUNTIME, passes_for("autocast"))["autocast"]
    return graph, findings


def test_a_weight_is_cast_once_for_all_its_users_and_held_by_the_cache() -> None:
    graph, findings = linear_under_autocast()
    (weight,) = (cast for cast in findings.casts if cast.weight)

    assert weight.weight == "layer.weight"
    assert weight.nbytes == findings.cached_weight_bytes == 64 * 64 * 2
    assert [graph.ops[user].target for user in weight.users] == ["aten.mm.default"] * 2
    assert weight.cached_until is not None


def test_the_cache_of_one_forward_pass_at_a_time_is_stated_for_accumulated_gradients() -> None:
    """Each forward pass is a region of its own, which ends with the cache empty.

    `autocast_increment_nesting`, aten/src/ATen/autocast_mode.cpp: `clear_cache` when the outermost
    region exits. The input's cast is a forward pass's, not the iteration's.
    """

    def build() -> TrainingStep:
        return TrainingStep(
            model=Twice(), inputs=torch.randn(32, 64), autocast="fp16", accumulate=2
        )

    graph = trace(build, gpu=find_gpu("a100"), options=TraceOptions(steps=1))
    findings: AutocastFindings = run_passes(graph, RUNTIME, passes_for("autocast"))["autocast"]

    assert [cast.weight for cast in findings.casts if cast.weight] == ["layer.weight"] * 2
    assert findings.cached_weight_bytes == 64 * 64 * 2
    assert findings.cast_bytes == 32 * 64 * 2
    assert findings.saved_bytes == 32 * 64 * 2


def test_the_first_input_is_cast_and_the_programs_casts_are_not_autocasts() -> None:
    """The second layer's input is in half precision already; `.float()` is the program's own."""
    _, findings = linear_under_autocast()

    assert [cast.nbytes for cast in findings.casts if not cast.weight] == [32 * 64 * 2]
    assert findings.cast_bytes == 32 * 64 * 2


def test_what_autograd_holds_in_half_precision_would_be_twice_as_large() -> None:
    """The first layer's result is the second one's input; the first input is a cast."""
    _, findings = linear_under_autocast()

    assert findings.saved_bytes == 32 * 64 * 2
