"""Numbers that an unknown is added to and taken away from, as in a straight-through estimate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from graphmem import TrainingStep
from graphmem.gpus import find_gpu
from graphmem.trace import TraceOptions, trace


def on_card(program: Callable[[Any], torch.Tensor]) -> list[list[float]]:
    """What a program that is given unknown scores of 6 x 3 returns."""
    returned: list[Any] = []

    def step() -> None:
        scores = torch.randn(6, 3, device="cuda", requires_grad=True)
        returned.append(program(scores * 2).tolist())

    options = TraceOptions(steps=1)
    trace(lambda: TrainingStep(step=step), gpu=find_gpu("a100-80gb"), options=options)
    return returned[0]


def chosen(scores: torch.Tensor) -> torch.Tensor:
    return F.one_hot(scores.argmax(-1), 3)


ONE_HOT: dict[str, Callable[[Any], torch.Tensor]] = {
    "gumbel_softmax": lambda scores: F.gumbel_softmax(scores, hard=True),
    "added, then taken away": lambda scores: chosen(scores) + scores - scores.detach(),
    "taken away, then added": lambda scores: scores + (chosen(scores) - scores.detach()),
    "a difference, added": torch.no_grad()(
        lambda scores: chosen(scores) + (scores - scores.detach())
    ),
}


@pytest.mark.parametrize("name", ONE_HOT)
def test_a_choice_that_passes_its_gradient_on_stays_a_choice(name: str) -> None:
    rows = on_card(lambda scores: ONE_HOT[name](scores).detach())

    assert [sorted(row) for row in rows] == [[0, 0, 1]] * 6


def rewritten_in_between(scores: torch.Tensor) -> torch.Tensor:
    unknown = scores.detach().clone()
    total = torch.ones(6, 3, device=scores.device) + unknown
    unknown.mul_(2)
    return total - unknown


def transposed(scores: torch.Tensor) -> torch.Tensor:
    square = scores.detach()[:3]
    return torch.ones(3, 3, device=scores.device) + square - square.T


def of_another_tensor(scores: torch.Tensor) -> torch.Tensor:
    return torch.ones(6, 3, device=scores.device) + scores.detach() - scores.detach().clone()


@pytest.mark.parametrize("program", [rewritten_in_between, transposed, of_another_tensor])
def test_what_does_not_cancel_out_is_unknown(program: Callable[[Any], torch.Tensor]) -> None:
    """Several unknown numbers read as zeros."""
    assert {number for row in on_card(program) for number in row} == {0}
