"""Operators that a card runs in parts, compared with the parts that a real CPU run allocates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from graphmem import TrainingStep
from graphmem.gpus import find_gpu
from tests.support import unobserved
from tests.support.oracle import assert_equal

IMAGES, HEIGHT, WIDTH, DEPTH = 3, 9, 10, 11
Operator = Callable[[Tensor], Tensor]


def plane(theta: Tensor, *, align_corners: bool) -> Tensor:
    size = [IMAGES, 1, HEIGHT, WIDTH]
    return functional.affine_grid(theta[:, :2, :3], size, align_corners=align_corners)


def volume(theta: Tensor, *, align_corners: bool) -> Tensor:
    size = [IMAGES, 1, DEPTH, HEIGHT, WIDTH]
    return functional.affine_grid(theta, size, align_corners=align_corners)


def scaled(theta: Tensor, *, exponents: torch.dtype) -> Tensor:
    return theta.ldexp(torch.ones(3, 4, dtype=exponents, device=theta.device))


def step_of(operator: Operator, device: str) -> TrainingStep:
    def step() -> None:
        theta = torch.ones(IMAGES, 3, 4, device=device, requires_grad=True)
        operator(theta).square().sum().backward()

    return TrainingStep(step=step)


def forward_of(operator: Operator, device: str) -> TrainingStep:
    def step() -> None:
        operator(torch.ones(IMAGES, 3, 4, device=device))

    return TrainingStep(step=step)


@pytest.fixture(autouse=True)
def with_inner_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare what an operator allocates and frees within itself, too."""
    monkeypatch.setattr(unobserved, "_inner_blocks", lambda found: set())


def assert_same_on_both(build: Callable[[str], TrainingStep]) -> None:
    real = unobserved.profiled_events(lambda: build("cpu"), 1)
    traced = unobserved.traced_events(lambda: build("cuda"), 1, find_gpu("h100"))
    assert_equal(real, traced)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("operator", [plane, volume])
def test_a_grid_takes_what_its_parts_take(
    operator: Callable[..., Tensor], align_corners: bool
) -> None:
    assert_same_on_both(partial(step_of, partial(operator, align_corners=align_corners)))


@pytest.mark.parametrize("exponents", [torch.float32, torch.int64])
def test_scaling_by_powers_of_two_takes_what_it_takes_on_the_cpu(
    exponents: torch.dtype,
) -> None:
    """Which is `pow` and `mul`, or one kernel."""
    assert_same_on_both(partial(forward_of, partial(scaled, exponents=exponents)))
