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
WRAPPED = """
import contextlib, torch, torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from model import Model, loss_of
dist.init_process_group("nccl")
model = DistributedDataParallel(Model().cuda(), {options})
optimizer = {optimizer}
for _ in range(3):
    for micro in range({micro_batches}):
        is_last = micro + 1 == {micro_batches}
        with contextlib.nullcontext() if is_last else model.no_sync():
            output = model(torch.randn(256 // {micro_batches}, 512).cuda())
            loss = loss_of(output)
            loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SHARDED = """
import torch, torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from model import Model, loss_of
dist.init_process_group("cpu:gloo,cuda:nccl")
with torch.device("{made}"):
    model = Model()
for i, block in enumerate(model.blocks):
    model.blocks[i] = {block}
    fully_shard(model.blocks[i], {options})
fully_shard(model, {options})
{moved}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(3):
    for _ in range({micro_batches}):
        output = model(torch.randn(256 // {micro_batches}, 512{inputs}).cuda())
        loss = loss_of(output)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
ADAMW = "torch.optim.AdamW(model.parameters(), lr=1e-3)"
ZERO_1 = "ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)"
BF16 = "mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32)"


@pytest.fixture
def compare(
    run_graphmem: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., None]:
    """Check that a plan has the peak and the reserved bytes of a script's rank 0."""

    def check(script: str, *planned: str, gpus: int = 2) -> None:
        monkeypatch.chdir(tmp_path)
        Path("model.py").write_text(MODEL)
        Path("train.py").write_text(script)
        card = ("--gpu", "h100", "--format", "json", "-o", "out.json")
        count = str(gpus)

        run_graphmem("plan", "model.py:build", "--gpus", count, "--steps", "3", *planned, *card)
        plan, *_ = json.loads(Path("out.json").read_text())["stages"]
        run_graphmem("run", "--nproc-per-node", count, *card, "train.py")
        run = json.loads(Path("out.json").read_text())

        found = plan["peak"], plan["reserved"]
        assert found == (run["peak"]["allocated"], run["ran"]["reserved"])
        assert plan["host"]["pinned"] == run["host"]["pinned_requested"]
        ran = run["at_peak"]["by_category"]
        for category in ("parameter", "gradient", "optimizer_state", "communication", "workspace"):
            assert plan["at_peak"].get(category, 0) == ran[category], category

    return check


@pytest.mark.parametrize(
    ("planned", "changes"),
    [
        ([], {}),
        (["--bucket-view"], {"options": "gradient_as_bucket_view=True"}),
        (["--zero", "1"], {"optimizer": ZERO_1}),
        (["--micro-batches", "2"], {"micro_batches": 2}),
    ],
)
def test_ddp_is_planned_as_it_runs(
    compare: Callable[..., None], planned: list[str], changes: dict[str, Any]
) -> None:
    usual = {"options": "", "optimizer": ADAMW, "micro_batches": 1}

    compare(WRAPPED.format(**usual | changes), *planned)


@pytest.mark.parametrize(
    ("planned", "changes"),
    [
        ([], {}),
        (["--no-reshard"], {"options": "reshard_after_forward=False"}),
        (["--precision", "bf16-master"], {"options": BF16, "inputs": ", dtype=torch.bfloat16"}),
        (["--checkpoint", "blocks.*"], {"block": "checkpoint_wrapper(block)"}),
        (["--micro-batches", "2"], {"micro_batches": 2}),
        (
            ["--offload", "optimizer,parameters"],
            {"made": "cpu", "moved": "", "options": "offload_policy=CPUOffloadPolicy()"},
        ),
    ],
)
def test_fsdp_plans_what_fully_shard_does(
    compare: Callable[..., None], planned: list[str], changes: dict[str, Any]
) -> None:
    moved = 'model.to_empty(device="cuda")'
    usual = {"options": "", "inputs": "", "block": "block", "made": "meta", "moved": moved}
    usual["micro_batches"] = "1"

    compare(SHARDED.format(**usual | changes), "--fsdp", *planned)
