"""`graphmem plan` against `graphmem run` of the script that runs PyTorch's own wrappers.

`run` judges: it runs `torch/distributed/fsdp/_fully_shard` itself on the virtual card, and recorded
ranks judge it (docs/accuracy_ranks.md).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
MODEL = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(512, 2048), nn.Linear(2048, 512)
    def forward(self, x):
        return x + self.down(self.up(x).relu())

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(512, 5000)
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)

def loss_of(output):
    return output.float().log_softmax(-1).square().mean()

def build():
    from graphmem import TrainingStep
    return TrainingStep(Model(), torch.randn(256, 512), loss_of)
"""
SCRIPT = """
import torch, torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from model import Model, loss_of
dist.init_process_group("nccl")
with torch.device("meta"):
    model = Model()
for block in model.blocks:
    fully_shard(block, {options})
fully_shard(model, {options})
model.to_empty(device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(3):
    output = model(torch.randn(256, 512{inputs}).cuda())
    loss = loss_of(output)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
BF16 = "mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32)"


@pytest.mark.parametrize(
    ("planned", "options", "inputs"),
    [
        ([], "", ""),
        (["--no-reshard"], "reshard_after_forward=False", ""),
        (["--precision", "bf16-master"], BF16, ", dtype=torch.bfloat16"),
    ],
)
def test_fsdp_plans_what_fully_shard_does(
    run_graphmem: Run,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    planned: list[str],
    options: str,
    inputs: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    Path("train.py").write_text(SCRIPT.format(options=options, inputs=inputs))
    card = ("--gpu", "h100", "--format", "json", "-o", "out.json")

    run_graphmem("plan", "model.py:build", "--gpus", "2", "--fsdp", "--steps", "3", *planned, *card)
    (plan,) = json.loads(Path("out.json").read_text())["stages"]
    run_graphmem("run", "--nproc-per-node", "2", *card, "train.py")
    run = json.loads(Path("out.json").read_text())

    assert (plan["peak"], plan["reserved"]) == (run["peak"]["allocated"], run["ran"]["reserved"])
    ran = run["at_peak"]["by_category"]
    for category in ("parameter", "gradient", "optimizer_state", "communication", "workspace"):
        assert plan["at_peak"].get(category, 0) == ran[category], category
