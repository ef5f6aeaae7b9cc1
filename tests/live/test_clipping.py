"""Norms on the card by which DeepSpeed's optimizer for bfloat16 clips gradients."""

from __future__ import annotations

from collections.abc import Callable
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
def library(make_module: Callable[[str, str], None]) -> None:
    make_module("deepspeed.runtime.utils", UTILS)


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
