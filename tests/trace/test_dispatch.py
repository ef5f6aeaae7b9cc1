"""The dispatch mode: what is recorded, what stays real, and which values are assumed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.checkpoint import checkpoint

from graphmem import TrainingStep
from graphmem.gpus import find_gpu
from graphmem.graph import Op, OwnerKind, PhaseName, StepGraph
from graphmem.torch_releases import installed_release
from graphmem.trace import TraceOptions, trace
from graphmem.trace.messages import BranchOnValueError
from graphmem.trace.real_tensors import REAL_CPU_ELEMENTS
from graphmem.values.choices import NotShareError
from graphmem.values.limits import INTEGERS
from tests.support.traced_step import targets

Iterate = Callable[[], Any]

DETACH_TIMES = 1 if installed_release() >= (2, 10) else 2
"""How often `detach` is dispatched: twice up to 2.9, once more by its autograd kernel."""


def traced(iterate: Iterate, *, steps: int = 1, **parts: Any) -> StepGraph:
    """The graph of a whole iteration, run on a virtual A100."""
    return built(lambda: TrainingStep(step=iterate, **parts), steps=steps)


def built(build: Callable[[], TrainingStep], *, steps: int = 1) -> StepGraph:
    return trace(build, gpu=find_gpu("A100"), options=TraceOptions(steps=steps))


def on_gpu(*shape: int, **options: Any) -> torch.Tensor:
    return torch.ones(shape, device="cuda", **options)


def unknown(*shape: int) -> torch.Tensor:
    """Unbounded numbers, known only to a card."""
    return torch.randn(shape, device="cuda")


def ops_called(graph: StepGraph, target: str) -> list[Op]:
    return [op for op in graph.ops if op.target == target]


def line_of(function: Callable[..., Any], text: str) -> int:
    """The line of this file that contains `text` within a function."""
    lines, first = inspect.getsourcelines(function)
    (found,) = [number for number, line in enumerate(lines, first) if text in line]
    return found


class TestRealTensors:
    def test_small_tensors_of_the_cpu_can_be_read(self) -> None:
        seen: list[Any] = []

        def step() -> None:
            schedule = torch.linspace(0, 1, 3)
            seen.append(schedule.tolist())
            seen.append((schedule * 2).max().item())
            seen.append(bool((schedule > 2).any()))

        graph = traced(step)

        assert seen == [[0.0, 0.5, 1.0], 2.0, False]
        assert graph.assumptions == []
        assert graph.ops == []

    @pytest.mark.parametrize("make", [torch.zeros, torch.ones, torch.rand, torch.randn])
    def test_only_large_tensors_of_the_cpu_are_fake(self, make: Callable[..., Any]) -> None:
        made: list[torch.Tensor] = []
        traced(lambda: made.extend([make(REAL_CPU_ELEMENTS), make(REAL_CPU_ELEMENTS + 1)]))

        assert [isinstance(tensor, FakeTensor) for tensor in made] == [False, True]

    def test_the_size_of_random_integers_comes_after_their_bounds(self) -> None:
        made: list[torch.Tensor] = []

        def step() -> None:
            made.append(torch.randint(10**9, (2, 2)))
            made.append(torch.randint(5, 10**9, (2, 2)))
            made.append(torch.randint(2, (INTEGERS + 1,)))

        traced(step)
        assert [isinstance(tensor, FakeTensor) for tensor in made] == [False, False, True]

    def test_gpu_tensors_of_any_size_are_fake(self) -> None:
        made: list[torch.Tensor] = []
        graph = traced(lambda: made.append(on_gpu(2)))

        assert isinstance(made[0], FakeTensor)
        assert [storage.nbytes for storage in graph.storages] == [2 * 4]

    def test_a_real_tensor_may_meet_a_fake_one(self) -> None:
        made: list[torch.Tensor] = []
        traced(lambda: made.append(on_gpu(3) * torch.tensor(2.0)))

        assert isinstance(made[0], FakeTensor)
        assert made[0].device.type == "cuda"


class TestWhatIsRecorded:
    def test_device_queries_and_profiling_are_not_operations(self) -> None:
        def step() -> None:
            tensor = on_gpu(2)
            with torch.profiler.record_function("mine"):
                assert tensor.device.type == "cuda"

        assert targets(traced(step)) == ["aten.ones.default"]

    def test_unpacking_a_saved_tensor_is_not_an_operation(self) -> None:
        weight: list[torch.Tensor] = []

        def step() -> None:
            weight[:] = [on_gpu(2, requires_grad=True)]
            weight[0].exp().sum().backward()

        graph = traced(step)
        backward = [op for op in graph.ops if graph.phases[op.phase].name is PhaseName.BACKWARD]
        assert [op.target for op in backward] == [
            "aten.ones_like.default",  # the gradient of the loss
            "aten.expand.default",
            "aten.mul.Tensor",
            *["aten.detach.default"] * DETACH_TIMES,  # AccumulateGrad steals
        ]

    def test_a_program_may_detach_a_tensor_that_was_unpacked(self) -> None:
        class Twice(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                ctx.save_for_backward(x)
                return x * 2

            @staticmethod
            def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
                (x,) = ctx.saved_tensors
                return gradient * x.detach()

        def step() -> None:
            Twice.apply(on_gpu(2, requires_grad=True)).sum().backward()

        names = [op.autograd_node for op in ops_called(traced(step), "aten.detach.default")]
        expected = ["TwiceBackward", "torch::autograd::AccumulateGrad"]
        assert names == [name for name in expected for _ in range(DETACH_TIMES)]

    def test_a_formula_reads_what_the_forward_operation_produced(self) -> None:
        graph = traced(lambda: on_gpu(2, requires_grad=True).exp().sum().backward())

        (exp,) = ops_called(graph, "aten.exp.default")
        (formula,) = ops_called(graph, "aten.mul.Tensor")
        assert exp in formula.args
        assert formula.forward == exp.index
        assert formula.autograd_node == "ExpBackward0"
        graph.fx.lint()

    def test_backward_has_the_line_and_the_module_of_forward(self) -> None:
        def build() -> TrainingStep:
            model = nn.Sequential(nn.Linear(2, 3), nn.GELU()).to("cuda")

            def step() -> None:
                model(on_gpu(4, 2)).sum().backward()  # both passes

            return TrainingStep(model=model, step=step)

        graph = built(build)
        (gelu,) = ops_called(graph, "aten.gelu.default")
        (formula,) = ops_called(graph, "aten.gelu_backward.default")
        assert formula.module == gelu.module == "1"
        assert formula.source is gelu.source is not None
        assert gelu.source.line == line_of(build, "# both passes")

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_what_is_recomputed_is_no_gradient(self, reentrant: bool) -> None:
        """Nor are its values: checkpointing must copy to the host what it copied before."""
        seen: list[Any] = []

        def block(x: torch.Tensor) -> torch.Tensor:
            seen.append(torch.full((2,), 3, device="cuda").cpu().tolist())  # as a router counts
            return (2 * x).tanh().cos()

        def step() -> None:
            checkpoint(
                block, on_gpu(2, 4).requires_grad_(), use_reentrant=reentrant
            ).sum().backward()

        graph = traced(step)

        first, again = ops_called(graph, "aten.tanh.default")
        assert graph.phases[again.phase].name is PhaseName.BACKWARD
        assert again.source == first.source
        assert (again.forward, again.autograd_node) == (None, None)
        assert seen == [[3, 3], [3, 3]]

    def test_autocasts_copy_of_a_weight_is_named_after_it(self) -> None:
        def build() -> TrainingStep:
            model = nn.Linear(2, 3, bias=False).to("cuda")

            def step() -> None:
                with torch.autocast("cuda", dtype=torch.float16):
                    model(on_gpu(4, 2))
                model.weight.to(torch.float16)

            return TrainingStep(model=model, step=step)

        copies = [
            (owner.name, storage.nbytes)
            for storage in built(build).storages
            for owner in storage.owners
            if owner.kind is OwnerKind.AUTOCAST_CACHE
        ]
        assert copies == [("weight", 2 * 3 * 2)]

    def test_the_gradient_of_silu_is_one_kernel(self) -> None:
        graph = traced(
            lambda: torch.nn.functional.silu(on_gpu(2, requires_grad=True)).sum().backward()
        )
        formula = [op.target for op in graph.ops if op.autograd_node == "SiluBackward0"]
        assert formula == ["aten.silu_backward.default"]


class TestValuesOnlyARunKnows:
    def test_an_item_is_assumed_one_or_zero_and_listed_once_with_its_line(self) -> None:
        seen: list[Any] = []

        def step() -> None:
            loss = unknown(2).sum()
            for _ in range(2):
                value = loss.item()
                seen.append(value)
            seen.append(int(unknown(1).to(torch.int64)))

        graph = traced(step, steps=3)

        assert seen == [1.0, 1.0, 0] * 3
        first, second = graph.assumptions
        assert (first.value, first.times) == ("1.0", 2 * 3)
        assert (second.value, second.times) == ("0", 3)
        assert first.source is not None
        assert first.source.file.endswith("tests/trace/test_dispatch.py")
        assert first.source.line == line_of(step, "loss.item()")

    @pytest.mark.parametrize(
        "ask",
        [
            lambda: bool(unknown(2).sum() > 0),
            lambda: bool(unknown(2).max() > unknown(2).min()),
        ],
    )
    def test_a_branch_on_a_tensors_value_is_rejected_with_its_line(
        self, ask: Callable[[], bool]
    ) -> None:
        with pytest.raises(BranchOnValueError) as raised:
            traced(ask)

        line = inspect.getsourcelines(ask)[1]
        assert f"tests/trace/test_dispatch.py:{line}:" in str(raised.value)

    def test_real_tensors_may_be_compared(self) -> None:
        seen: list[bool] = []
        traced(lambda: seen.append(torch.equal(torch.zeros(2), torch.zeros(2))))
        assert seen == [True]

    @pytest.mark.parametrize(("fraction", "rows"), [(None, 8), (0.25, 2), (0.0, 0)])
    def test_a_mask_selects_the_assumed_fraction(self, fraction: float | None, rows: int) -> None:
        shapes: list[torch.Size] = []

        def step() -> None:
            values = unknown(8, 3)
            mask = values[:, 0] > 0
            shapes.append(values[mask].shape)
            shapes.append(mask.nonzero().shape)

        given = {} if fraction is None else {"nonzero": fraction}
        graph = traced(step, assume=given)

        assert shapes == [(rows, 3), (rows, 1)]
        share = "all (the bound)" if fraction is None else f"{fraction:g} of them (at most 8)"
        assert [each.value for each in graph.assumptions] == [share] * 2

    @pytest.mark.parametrize("given", [{"nonzero": 1.5}, {"nonzero": -0.1}, {"routing": 2.0}])
    def test_an_assumed_fraction_is_between_0_and_1(self, given: dict[str, float]) -> None:
        with pytest.raises(NotShareError):
            traced(lambda: None, assume=given)
