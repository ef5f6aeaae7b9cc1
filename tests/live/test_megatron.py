"""What Megatron-LM does unlike other programs, in its smallest form, and in part DeepSpeed.

A parameter in bfloat16 has its gradient and its copy in float32 as attributes, and the engine is
called without `backward` (`custom_backward` of megatron/core/pipeline_parallel/schedules.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome

TRAINING = """import torch
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Linear(512, 256)).cuda().bfloat16()
parameters = list(model.parameters())
grads = torch.zeros(sum(each.numel() for each in parameters), device="cuda")
start = 0
for each in parameters:
    each.main_grad = grads[start : start + each.numel()].view(each.shape)
    each.main_param = each.detach().clone().float()
    start += each.numel()
optimizer = torch.optim.Adam([each.main_param for each in parameters])
for step in range(2):
    output = model(torch.zeros(8, 256, device="cuda", dtype=torch.bfloat16))
    torch.autograd.Variable._execution_engine.run_backward(
        (output,), (torch.ones_like(output),), False, False, (), True, True
    )
    for each in parameters:
        each.main_grad.add_(each.grad)
        each.grad = None
        each.main_param.grad = each.main_grad
    optimizer.step()
    for each in parameters:
        each.data.copy_(each.main_param)
"""
NUMBERS = 256 * 512 + 512 + 512 * 256 + 256


@pytest.mark.parametrize("gradient", ["main_grad", "_hp_grad"])
def test_parts_in_float32_and_the_backward_pass_are_known(
    run_graphmem: Callable[..., Outcome], tmp_path: Path, gradient: str
) -> None:
    (tmp_path / "train.py").write_text(TRAINING.replace("main_grad", gradient))
    output = tmp_path / "report.json"
    run_graphmem(
        "run", "--gpu", "t4", "--format", "json", "-o", str(output), str(tmp_path / "train.py")
    )

    report = json.loads(output.read_text())
    phases = [[phase["name"] for phase in step["phases"]] for step in report["steps"]]
    assert phases == [["forward", "backward", "optimizer"]] * 2
    held = report["at_peak"]["by_category"]
    assert held["parameter"] == (2 + 4) * NUMBERS
    assert held["gradient"] == 4 * NUMBERS
    assert held["optimizer_state"] == 2 * 4 * NUMBERS
    assert held["buffer"] == 0
    assert report["model"]["parameters"] == NUMBERS
