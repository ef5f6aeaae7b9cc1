"""TorchScript in a step that graphmem iterates."""

from __future__ import annotations

import torch
from torch import nn

import graphmem


class Scripted(nn.Module):
    """A linear layer and a scripted activation."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.activation = torch.jit.script(doubled_tanh)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.activation(self.linear(x))
        return out


def doubled_tanh(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x * 2) * x


def test_a_step_with_scripted_parts_says_that_they_are_not_fused() -> None:
    """On a card the executor fuses them from the third call on; here each operation runs."""
    report = graphmem.analyze(Scripted(), torch.randn(64, 64), gpu="h100-80gb")
    assumed = [(each.what, each.value, each.times) for each in report.assumptions]
    assert assumed == [("TorchScript", "run without fusion", 3)]
