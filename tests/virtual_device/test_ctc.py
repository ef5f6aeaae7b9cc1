"""`ctc_loss` on the virtual GPU: PyTorch's own kernels and cuDNN's, in every form of lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from graphmem import TrainingStep, analyze
from graphmem.graph import StepGraph
from graphmem.trace import TraceOptions
from tests.support.kernel_calls import Calls, aten, tensor
from tests.support.oracle import assert_agree, run, traced_events
from tests.support.traced_step import traced

STEPS, BATCH, LABELS = 50, 16, 20
LONGEST = 30
FLOAT, INT64 = 4, 8
LOG_ALPHA = BATCH * STEPS * (2 * LONGEST + 1) * FLOAT
"""cuda/LossCTC.cu: a row for each sequence and step, a column for each label and blank."""


def sizes_of(graph: StepGraph, target: str) -> list[int]:
    """Bytes allocated by the operations of this name."""
    births = (op.births for op in graph.ops if op.target.startswith(target))
    return [graph.storages[number].nbytes for born in births for number in born]


def padded() -> torch.Tensor:
    return torch.randint(1, LABELS, (BATCH, LONGEST), device="cuda")


def concatenated() -> torch.Tensor:
    return torch.randint(1, LABELS, (BATCH * LONGEST,), device="cuda")


def on_host(length: int) -> torch.Tensor:
    return torch.full((BATCH,), length)


def on_device(length: int) -> torch.Tensor:
    return torch.full((BATCH,), length, device="cuda")


def as_list(length: int) -> list[int]:
    return [length] * BATCH


@pytest.mark.parametrize("targets", [padded, concatenated])
@pytest.mark.parametrize("lengths", [on_host, on_device, as_list])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_every_form_of_lengths_makes_the_same_table(
    targets: Callable[[], torch.Tensor], lengths: Callable[[int], Any], reduction: str
) -> None:
    def step() -> None:
        scores = torch.randn(STEPS, BATCH, LABELS, device="cuda", requires_grad=True)
        lost = nn.CTCLoss(reduction=reduction)(
            scores.log_softmax(2), targets(), lengths(STEPS), lengths(LONGEST)
        )
        lost.sum().backward()

    graph = traced(step, gpu="a100")

    table = BATCH * STEPS * (2 * LONGEST + 1) * FLOAT
    assert sorted(sizes_of(graph, "aten._ctc_loss.")) == [BATCH * FLOAT, table]
    assert sizes_of(graph, "aten._ctc_loss_backward.") == [STEPS * BATCH * LABELS * FLOAT]


@pytest.mark.parametrize("lengths", [on_host, on_device, as_list])
def test_inference_mode_makes_the_same_table(lengths: Callable[[int], Any]) -> None:
    def step() -> None:
        with torch.inference_mode():
            scores = torch.randn(STEPS, BATCH, LABELS, device="cuda").log_softmax(2)
            functional.ctc_loss(scores, padded(), lengths(STEPS), lengths(LONGEST))

    sizes = sizes_of(traced(step, gpu="a100"), "aten._ctc_loss.")
    assert sorted(sizes) == [BATCH * FLOAT, LOG_ALPHA]


def test_unknown_lengths_are_assumed_at_their_bound_and_reported() -> None:
    def step() -> None:
        scores = torch.randn(STEPS, BATCH, LABELS, device="cuda", requires_grad=True)
        long, short = torch.randn(2, BATCH, device="cuda").long()
        functional.ctc_loss(scores.log_softmax(2), padded(), long, short).backward()

    report = analyze(lambda: TrainingStep(step=step), steps=1)

    told = {each.what: each.value for each in report.assumptions}
    assert told["the lengths of ctc_loss's inputs"] == f"{STEPS} each (the bound)"
    assert told["the lengths of ctc_loss's targets"] == f"{LONGEST} each (the bound)"


def test_an_unbatched_loss_is_a_scalar() -> None:
    seen: list[torch.Size] = []

    def step() -> None:
        scores = torch.randn(STEPS, LABELS, device="cuda", requires_grad=True)
        target = torch.ones(LONGEST, dtype=torch.int64, device="cuda")
        options: dict[str, Any] = {"reduction": "none", "zero_infinity": True}
        lost = functional.ctc_loss(scores.log_softmax(1), target, [STEPS], [LONGEST], **options)
        seen.append(lost.shape)
        lost.backward()

    traced(step, gpu="a100")
    assert seen == [torch.Size([])]


@pytest.mark.parametrize("lengths", [on_device, as_list])
def test_cudnn_takes_concatenated_32_bit_targets(
    lengths: Callable[[int], Any],
) -> None:
    """cudnn/LossCTC.cpp: with lists of lengths the targets are on the host, with tensors the
    lengths have 32 bits. The gradient comes from the forward pass."""

    def step() -> None:
        scores = torch.randn(STEPS, BATCH, LABELS, device="cuda", requires_grad=True)
        many, few = lengths(STEPS), lengths(3)
        if isinstance(many, torch.Tensor):
            many, few = many.int(), few.int()
        labels = torch.ones(BATCH * 3, dtype=torch.int32, device="cpu")
        functional.ctc_loss(scores.log_softmax(2), labels, many, few, reduction="sum").backward()

    graph = traced(step, gpu="a100")

    gradient = STEPS * BATCH * LABELS * FLOAT
    assert sorted(sizes_of(graph, "aten._cudnn_ctc_loss.")) == [BATCH * FLOAT, gradient]
    assert not sizes_of(graph, "aten._ctc_loss.")


def test_cudnn_is_not_chosen_for_unsupported_inputs() -> None:
    def step() -> None:
        scores = torch.randn(300, 2, LABELS, device="cuda").log_softmax(2)
        labels = torch.ones(2 * 256, dtype=torch.int32, device="cpu")
        functional.ctc_loss(scores, labels, [300, 300], [256, 256])

    graph = traced(step, gpu="a100")
    assert sizes_of(graph, "aten._ctc_loss.")
    assert not sizes_of(graph, "aten._cudnn_ctc_loss.")


@pytest.mark.parametrize("kind", [list, torch.tensor])
def test_a_real_run_of_the_cpu_agrees(kind: Callable[[list[int]], Any]) -> None:
    def build() -> TrainingStep:
        model = nn.Linear(8, LABELS)
        labels = torch.randint(1, LABELS, (4, 5))

        def loss(scores: torch.Tensor) -> torch.Tensor:
            found = scores.log_softmax(2)
            lengths = kind([12] * 4), kind([5, 3, 2, 5])
            return functional.ctc_loss(found, labels, *lengths, reduction="sum")

        return TrainingStep(model=model, inputs=torch.randn(12, 4, 8), loss=loss)

    options = TraceOptions(steps=2)
    assert_agree(run(build, options), traced_events(build, options))


class TestScratch:
    """cuda/LossCTC.cu, a table of 61 columns; sizes in bytes."""

    lengths = BATCH * INT64

    def loss(self, zero_infinity: bool, steps: int = STEPS) -> list[str | int]:
        grad, scores = tensor(BATCH), tensor(steps, BATCH, LABELS)
        labels = tensor(BATCH, LONGEST, dtype=torch.int64)
        table = tensor(BATCH, steps, 2 * LONGEST + 1)
        return _fake_backward(grad, scores, labels, table, zero_infinity)

    def test_a_small_problem_takes_lengths_and_a_second_table(self) -> None:
        """2 * 50 + 24 * 16 // 10 + 2 * 20 // 10 = 142 is not above 450."""
        assert self.loss(zero_infinity=False) == [
            *[self.lengths] * 3, LOG_ALPHA, "out0", -LOG_ALPHA, *[-self.lengths] * 3
        ]  # fmt: skip

    def test_a_large_problem_sums_the_blanks_of_both_tables(self) -> None:
        """2 * 300 is above 450. The sum has LONGEST + 1 columns."""
        program = self.loss(zero_infinity=False, steps=300)
        blanks = BATCH * 300 * (LONGEST + 1) * FLOAT

        table = BATCH * 300 * (2 * LONGEST + 1) * FLOAT
        assert program[:6] == [*[self.lengths] * 3, table, "out0", blanks]

    def test_infinities_are_replaced_in_a_copy_of_the_gradient(self) -> None:
        program = self.loss(zero_infinity=True, steps=300)
        gradient = 300 * BATCH * LABELS * FLOAT

        assert program[4] == gradient
        mask, zero = BATCH, FLOAT
        end = program.index("out0")
        assert program[end - 2 : end + 4] == [zero, mask, "out0", -mask, -zero, -gradient]


def _fake_backward(
    grad: torch.Tensor,
    scores: torch.Tensor,
    labels: torch.Tensor,
    table: torch.Tensor,
    zero_infinity: bool,
) -> list[str | int]:
    library = torch.library.Library("aten", "IMPL")
    library.impl("_ctc_loss_backward", lambda grad, scores, *_: torch.empty_like(scores), "Meta")
    try:
        return Calls().call(
            aten._ctc_loss_backward.default, grad, scores, labels, [scores.shape[0]] * BATCH,
            [LONGEST] * BATCH, grad, table, 0, zero_infinity,
        )  # fmt: skip
    finally:
        library._destroy()
