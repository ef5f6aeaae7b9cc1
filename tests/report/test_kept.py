"""Memory that a program keeps from one iteration to the next."""

from __future__ import annotations

import torch
from torch import nn

import graphmem

ROWS, WIDTH = 4096, 256


def test_what_a_list_keeps_of_earlier_iterations_is_not_temporary() -> None:
    """The peak is in the fourth iteration, when the list holds the outputs of three others."""
    outputs: list[torch.Tensor] = []

    def loss(output: torch.Tensor) -> torch.Tensor:
        outputs.append(output.detach())
        return output.square().mean()

    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    report = graphmem.analyze(model, torch.randn(ROWS, WIDTH), loss=loss, steps=4)

    assert report.peak.step == 3
    assert report.at_peak.by_category["kept"] == 3 * ROWS * WIDTH * 4
