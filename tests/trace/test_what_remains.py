"""What an analysis leaves in the process, which later ones would visit: nothing that grows."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from torch import nn

import graphmem
from graphmem import TrainingStep
from graphmem.graph import StepGraph


class KeepsItsLoss:
    """A training loop that holds its last loss, and with it the graph of autograd."""

    def __init__(self) -> None:
        self.model = nn.Linear(8, 8).cuda()
        self.loss = torch.zeros(())

    def __call__(self) -> None:
        self.loss = self.model(torch.randn(4, 8, device="cuda")).sum()
        self.loss.backward()


def keeps_its_loss() -> TrainingStep:
    step = KeepsItsLoss()
    return TrainingStep(model=step.model, step=step)


def compiled() -> TrainingStep:
    pytest.importorskip("triton")
    model = torch.compile(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
    return TrainingStep(model=model, inputs=(torch.randn(4, 8),), loss=torch.Tensor.sum)


@pytest.mark.parametrize("build", [keeps_its_loss, compiled])
def test_a_further_analysis_leaves_no_more_graphs(build: Callable[[], TrainingStep]) -> None:
    for _ in range(2):  # fills PyTorch's caches
        remaining = graphs_after(build)

    assert graphs_after(build) <= remaining


def graphs_after(build: Callable[[], TrainingStep]) -> int:
    graphmem.analyze(build, gpu="t4")
    gc.collect()
    return sum(type(each) is StepGraph for each in gc.get_objects())
