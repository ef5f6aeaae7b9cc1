"""Linear assignments that a library solves on the card."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from graphmem.live.gpu import VirtualGpu

Virtual = Callable[..., VirtualGpu]
LIBRARY = """
import torch

def batch_linear_assignment_cuda(cost):  # as unknown as what a kernel writes
    return cost.sum(2).long()

def batch_linear_assignment(cost):
    return batch_linear_assignment_cuda(cost)
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "torch_linear_assignment"
    package.mkdir()
    (package / "__init__.py").write_text("from .assignment import batch_linear_assignment\n")
    (package / "assignment.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("torch_linear_assignment", "torch_linear_assignment.assignment"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("tasks", "expected"), [(2, [0, 1, -1]), (4, [0, 1, 2])])
def test_each_worker_gets_a_task_of_its_own(
    virtual_gpu: Virtual, tasks: int, expected: list[int]
) -> None:
    gpu = virtual_gpu("a100")
    from torch_linear_assignment import (  # type: ignore[import-not-found]
        batch_linear_assignment,
    )

    costs = torch.nn.Linear(2, tasks, device="cuda")(torch.ones(5, 3, 2, device="cuda"))
    assigned = batch_linear_assignment(costs.detach())
    assert assigned.tolist() == 5 * [expected]
    assert any("a worker gets" in each.what for each in gpu.report().assumptions)
