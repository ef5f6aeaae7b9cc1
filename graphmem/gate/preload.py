"""Preloaded by the gate's fork server: an interpreter that has already analysed something.

A first analysis imports some 900 modules and reads PyTorch's tables; processes forked afterwards
share them. Importing this module analyses a model that has a bit of everything. Nothing leaks into
other analyses: a trace restores everything when it ends (`caller/`), and the cache of fake tensors
is cleared.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import graphmem.gate.processes  # noqa: F401 - the module that processes run
from graphmem.analysis import Request, run_analysis
from graphmem.caller import freeze


class _Model(nn.Module):
    """A convolution, an embedding, attention, norms, dropout and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.pixels = nn.Conv2d(1, 2, 3)
        self.words = nn.Embedding(4, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, image: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.words(tokens) + self.pixels(image).mean()
        logits: torch.Tensor = self.head(self.block(hidden))
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def _build() -> Any:
    image, tokens = torch.randn(1, 1, 4, 4), torch.zeros(2, 3, dtype=torch.long)
    return _Model(), (image, tokens), lambda loss: loss


def warm_up() -> None:
    """Analyse a small model; if that fails, each process reports the error itself."""
    with suppress(Exception):
        run_analysis(_build, Request(steps=2)).report.to_json()
    FakeTensorMode.cache_clear()
    freeze()


warm_up()
