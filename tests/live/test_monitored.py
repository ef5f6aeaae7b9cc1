"""Metrics on the card that Lightning's callbacks watch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from graphmem.live.gpu import VirtualGpu

Virtual = Callable[..., VirtualGpu]
CHECKPOINT = """
import torch

class ModelCheckpoint:  # decides as lightning/pytorch/callbacks/model_checkpoint.py of 2.6 does
    def __init__(self, monitor, mode):
        self.monitor, self.mode, self.best = monitor, mode, None

    def check_monitor_top_k(self, trainer, current=None):
        better = {"min": torch.lt, "max": torch.gt}[self.mode]
        decided = self.best is None or bool(better(current, self.best))
        self.best = current
        return decided
"""


@pytest.fixture
def library(make_module: Callable[[str, str], None]) -> None:
    make_module("pytorch_lightning.callbacks.model_checkpoint", CHECKPOINT)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_checkpoint_is_saved_as_often_as_its_metric_improves(
    virtual_gpu: Virtual, mode: str
) -> None:
    gpu = virtual_gpu("a100")
    module: Any = pytest.importorskip("pytorch_lightning.callbacks.model_checkpoint")
    checkpoint = module.ModelCheckpoint("val_loss", mode)
    net = torch.nn.Linear(2, 1, device="cuda")
    losses = [net(torch.ones(2, device="cuda")).detach().sum() for _ in range(3)]
    assert all(checkpoint.check_monitor_top_k(None, loss) for loss in losses)
    assert any(each.what == "`val_loss`" for each in gpu.report().assumptions)
