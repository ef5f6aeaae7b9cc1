"""When memory that iterations keep is called a leak."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import graphmem
from graphmem.report.schema import GROWTH


@pytest.mark.parametrize("is_emptied", [True, False])
def test_a_list_that_is_emptied_after_an_epoch_does_not_leak(is_emptied: bool) -> None:
    with graphmem.virtual_gpu("a100") as gpu:
        model = nn.Linear(256, 256, device="cuda")
        optimizer = torch.optim.SGD(model.parameters())
        outputs: list[torch.Tensor] = []
        for iteration in range(10):
            output = model(torch.ones(64, 256, device="cuda"))
            output.sum().backward()
            optimizer.step()
            outputs.append(output.detach())
            if is_emptied and iteration == 7:
                outputs.clear()
    report = gpu.report()
    assert report.ran is not None
    assert report.ran.grows_by == (0 if is_emptied else 64 * 256 * 4)
    assert any(each.found_by == GROWTH for each in report.findings) is not is_emptied
