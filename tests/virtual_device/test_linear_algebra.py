"""Factorisations and least squares on the virtual GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from graphmem import TrainingStep
from graphmem.trace import TraceOptions
from tests.support.oracle import assert_agree, run, traced_events
from tests.support.traced_step import traced


def test_geqrf_makes_what_a_real_one_makes() -> None:
    seen: list[list[tuple[torch.Size, tuple[int, ...]]]] = []

    def step() -> None:
        factors = torch.geqrf(torch.randn(2, 5, 3, device="cuda"))
        seen.append([(each.shape, each.stride()) for each in factors])

    traced(step, gpu="a100")

    real = torch.geqrf(torch.randn(2, 5, 3))
    assert seen == [[(each.shape, each.stride()) for each in real]]


@pytest.mark.parametrize(
    ("left", "right"),
    [((6, 3), (6, 2)), ((3, 6), (3, 2)), ((4, 4), (4, 2)), ((2, 6, 3), (2, 6, 2))],
)
def test_least_squares_keeps_all_rows_of_the_right_hand_side(
    left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    """`gels`, the only CUDA driver, compared with the CPU's."""
    real = torch.linalg.lstsq(torch.randn(left), torch.randn(right), driver="gels")
    seen: list[list[tuple[torch.Size, int]]] = []

    def step() -> None:
        made = torch.linalg.lstsq(torch.randn(left).cuda(), torch.randn(right).cuda())
        seen.append([(each.shape, each.untyped_storage().nbytes()) for each in made])

    traced(step, gpu="a100")
    assert seen == [[(each.shape, each.untyped_storage().nbytes()) for each in real]]


def least_squares() -> TrainingStep:
    def loss(rows: torch.Tensor) -> torch.Tensor:
        return torch.linalg.lstsq(rows, torch.ones(6, 2), driver="gels").solution.sum()

    return TrainingStep(model=nn.Linear(4, 3), inputs=torch.randn(6, 4), loss=loss)


@pytest.mark.parametrize("build", [least_squares])
def test_a_real_run_of_the_cpu_agrees(build: Callable[[], TrainingStep]) -> None:
    options = TraceOptions(steps=2)
    assert_agree(run(build, options), traced_events(build, options))
