"""Draws from distributions on the virtual GPU, and their derivatives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import distributions
from torch.distributions import Distribution

import graphmem
from graphmem import TrainingStep
from tests.support.sizes import MIB

ROWS, COLUMNS = 64, 4
MADE: dict[str, Callable[[torch.Tensor], Distribution]] = {
    "Beta": lambda each: distributions.Beta(each, each),
    "Binomial": lambda each: distributions.Binomial(torch.full_like(each, 9), each.sigmoid()),
    "Dirichlet": distributions.Dirichlet,
    "Gamma": lambda each: distributions.Gamma(each, each),
    "Poisson": distributions.Poisson,
    "StudentT": distributions.StudentT,
}


def drawn(name: str, device: str) -> list[tuple[torch.Size, tuple[int, ...]]]:
    """Shapes and strides of a draw and, if it has one, of its gradient."""
    transposed = torch.ones(COLUMNS, ROWS, device=device).t().requires_grad_()
    distribution = MADE[name](transposed.exp())
    if not distribution.has_rsample:
        sample = distribution.sample()
        return [(sample.shape, sample.stride())]
    sample = distribution.rsample()
    (gradient,) = torch.autograd.grad(sample.sum(), transposed)
    return [(each.shape, each.stride()) for each in (sample, gradient)]


@pytest.mark.parametrize("name", MADE)
def test_a_draw_and_its_gradient_lie_as_in_a_real_run(name: str) -> None:
    found: list[object] = []

    graphmem.analyze(TrainingStep(step=lambda: found.append(drawn(name, "cuda"))), steps=1)

    assert found == [drawn(name, "cpu")]


def test_a_draw_from_a_dirichlet_distribution_holds_sums_of_its_rows() -> None:
    """16 MiB of concentrations and as much drawn; 4 MiB for the sum of each row of four."""

    def step() -> None:
        torch._sample_dirichlet(torch.ones(MIB, 4, device="cuda"))

    report = graphmem.analyze(TrainingStep(step=step), steps=1)

    assert report.peak.allocated == (16 + 16 + 4) * MIB
