"""Another batch for a step: its inputs, and the labels that its loss closes over."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from graphmem.analysis import Request, run_analysis
from graphmem.changes import Changes
from graphmem.changes.batch import resize_batch
from graphmem.training_step import TrainingStep

LABELS = torch.arange(8) % 3


def closing_over() -> Callable[[Any], Any]:
    labels = LABELS
    return lambda output: cross_entropy(output, labels)


def with_a_default(output: torch.Tensor, labels: torch.Tensor = LABELS) -> torch.Tensor:
    return cross_entropy(output, labels)


LOSSES = {
    "closure": closing_over(),
    "default": with_a_default,
    "partial": partial(cross_entropy, target=LABELS),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("batch", [3, 20])
def test_labels_have_the_batch_of_the_inputs(loss: Callable[..., Any], batch: int) -> None:
    def build() -> TrainingStep:
        return TrainingStep(torch.nn.Linear(4, 3), torch.randn(8, 4), loss)

    request = Request(steps=1, changes=Changes(batch_size=batch))
    step = resize_batch(build(), batch)

    assert run_analysis(build, request).report.peak.allocated > 0
    assert step.loss is not None
    assert step.loss(torch.zeros(batch, 3)).shape == ()
    assert loss(torch.zeros(8, 3)).shape == ()  # the caller's own function is untouched


def test_what_has_another_first_dimension_stays() -> None:
    weights = torch.ones(3)

    def loss(output: torch.Tensor) -> torch.Tensor:
        return cross_entropy(output, output.argmax(1), weight=weights)

    step = resize_batch(TrainingStep(torch.nn.Linear(4, 3), torch.randn(8, 4), loss), 5)

    assert step.loss is not None
    assert step.loss(torch.zeros(5, 3)).shape == ()
