"""Another batch for a step: its inputs, and the labels that its loss closes over."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.functional import cross_entropy

import graphmem
from graphmem.changes import Changes
from graphmem.changes.batch import resize_batch
from graphmem.training_step import TrainingStep

LABELS = torch.arange(8) % 3


class Pair(NamedTuple):
    """A batch as a data loader may return it."""

    rows: Any
    labels: Any


def closing_over() -> Callable[[Any], Any]:
    labels = LABELS
    return lambda output: cross_entropy(output, labels)


def closing_over_a_batch() -> Callable[[Any], Any]:
    batch = {"labels": LABELS}
    return lambda output: cross_entropy(output, batch["labels"])


def closing_over_a_pair() -> Callable[[Any], Any]:
    batch = Pair(None, LABELS)
    return lambda output: cross_entropy(output, batch.labels)


def with_a_default(output: torch.Tensor, labels: torch.Tensor = LABELS) -> torch.Tensor:
    return cross_entropy(output, labels)


def of_the_file(output: torch.Tensor) -> torch.Tensor:
    return cross_entropy(output, LABELS)


class OfAnObject:
    """A loss that keeps its labels."""

    def __init__(self) -> None:
        self.labels = LABELS

    def __call__(self, output: torch.Tensor) -> torch.Tensor:
        return cross_entropy(output, self.labels)


LOSSES = {
    "closure": closing_over(),
    "dict": closing_over_a_batch(),
    "named tuple": closing_over_a_pair(),
    "default": with_a_default,
    "partial": partial(cross_entropy, target=LABELS),
    "global": of_the_file,
    "nested": lambda output: of_the_file(output) / 2,
    "object": OfAnObject(),
    "method": OfAnObject().__call__,
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("batch", [3, 20])
def test_labels_have_the_batch_of_the_inputs(loss: Callable[..., Any], batch: int) -> None:
    def build() -> TrainingStep:
        return TrainingStep(torch.nn.Linear(4, 3), torch.randn(8, 4), loss)

    step = resize_batch(build(), batch)

    changes = Changes(batch_size=batch)
    assert graphmem.analyze(build, steps=1, changes=changes).peak.allocated > 0
    assert step.loss is not None
    assert step.loss(torch.zeros(batch, 3)).shape == ()
    assert loss(torch.zeros(8, 3)).shape == ()  # the caller's own function is untouched


def test_an_output_that_the_loss_drops_is_freed_as_before() -> None:
    """Nothing but the loss itself holds what it is given."""

    def step_of(rows: int) -> TrainingStep:
        labels = torch.zeros(rows, dtype=torch.int64)

        def loss(output: torch.Tensor) -> torch.Tensor:
            output = output.float()  # 5 MiB; the float16 output of 2.5 MiB is freed here
            shifted = output + 1  # the forward pass's peak
            return shifted.sum() * labels.sum()

        model = torch.nn.Linear(4, 1280).half()
        inputs = torch.randn(rows, 4).half()
        return TrainingStep(model, inputs, loss, keep_output=False)

    changes = Changes(batch_size=1024)
    resized = graphmem.analyze(lambda: step_of(512), steps=1, changes=changes)
    assert resized.steps == graphmem.analyze(lambda: step_of(1024), steps=1).steps


def test_what_has_another_first_dimension_stays() -> None:
    weights = torch.ones(3)

    def loss(output: torch.Tensor) -> torch.Tensor:
        return cross_entropy(output, output.argmax(1), weight=weights)

    step = resize_batch(TrainingStep(torch.nn.Linear(4, 3), torch.randn(8, 4), loss), 5)

    assert step.loss is not None
    assert step.loss(torch.zeros(5, 3)).shape == ()
