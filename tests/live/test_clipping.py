"""Norms on the card by which DeepSpeed's optimizer for bfloat16 clips gradients."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphmem.live.gpu import VirtualGpu

UTILS = '''
def clip_tensors_by_global_norm(input_tensors, max_norm=1.0, global_norm=None, mpu=None, eps=1e-6):
    """As in deepspeed/runtime/utils.py of 0.19.8."""
    clip_coef = max_norm / (global_norm + eps)
    if clip_coef < 1:
        for tensor in input_tensors:
            tensor.detach().mul_(clip_coef)
    return global_norm
'''


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "deepspeed" / "runtime"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "utils.py").write_text(UTILS)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [each for each in sys.modules if each.split(".")[0] == "deepspeed"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("most", "clips"), [(0.5, True), (2.0, False)])
def test_gradients_are_clipped_as_if_their_norm_was_one(
    virtual_gpu: Callable[..., VirtualGpu], most: float, clips: bool
) -> None:
    gpu = virtual_gpu("a100")
    utils: Any = pytest.importorskip("deepspeed.runtime.utils")
    weight = torch.ones(8, device="cuda", requires_grad=True)
    weight.square().sum().backward()
    gradient: Any = weight.grad
    utils.clip_tensors_by_global_norm([gradient], max_norm=most, global_norm=gradient.norm())

    report = gpu.report()
    targets = [op.target for op in gpu.analysis().graph.ops]
    assert ("aten.mul_.Tensor" in targets) is clips
    assert any(each.what == "the norm of all gradients" for each in report.assumptions)
