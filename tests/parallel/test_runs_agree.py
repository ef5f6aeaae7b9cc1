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

from tests.support.places import FIXTURES

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


PIPELINED = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from model import Model, loss_of

class Part(nn.Module):
    def __init__(self, model, rank):
        super().__init__()
        self.blocks = model.blocks[2:] if rank else model.blocks[:2]
        self.head = model.head if rank else nn.Identity()
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)

dist.init_process_group("nccl")
rank = dist.get_rank()
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
stage = PipelineStage(Part(Model(), rank).to(device), rank, 2, device)
schedule = {schedule}(stage, 4, loss_fn=lambda output, target: loss_of(output))
optimizer = torch.optim.AdamW(stage.submod.parameters(), lr=1e-3)
for _ in range(3):
    if rank:
        schedule.step(target=torch.zeros(256).cuda())
    else:
        schedule.step(torch.randn(256, 512).cuda())
    optimizer.step()
    optimizer.zero_grad()
"""
BUILD = """
def build():
    from functools import partial
    from graphmem import TrainingStep
    tokens, targets = next(batches(1, "cpu"))
    adamw = partial(torch.optim.AdamW, foreach=False)
    return TrainingStep(Decoder(), (tokens,), lambda out: loss_of(out, targets), adamw)
"""
DIVIDED = """
import torch, torch.distributed as dist
from model import Decoder, batches, loss_of
from tensor_parallel import parallelize
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import loss_parallel
dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", ({replicas}, 2), mesh_dim_names=("dp", "tp"))
with torch.device("meta"):
    model = Decoder()
parallelize(model, mesh["tp"], {sequence_parallel}, True)
if {replicas} > 1:
    for i, block in enumerate(model.blocks):
        model.blocks[i] = {block}
        fully_shard(model.blocks[i], mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
model.to_empty(device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

def loss_of_batch(tokens, targets):
    tokens, targets = tokens.cuda(), targets.cuda()
    global output
    output = model(tokens)
    return loss_of(output, targets)

for _ in range(3):
    for tokens, targets in batches({micro_batches}, "cpu", batch=4 // {micro_batches}):
        with loss_parallel():
            loss = loss_of_batch(tokens, targets)
            loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def both(
    run_graphmem: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., tuple[Any, Any]]:
    """A plan's stage, and the report of a script's rank."""

    def made(
        script: str, *planned: str, rank: int = 0, gpus: int = 2, model: str = MODEL
    ) -> tuple[Any, Any]:
        monkeypatch.chdir(tmp_path)
        Path("model.py").write_text(model)
        Path("train.py").write_text(script)
        card = ("--gpu", "h100", "--format", "json", "-o", "out.json")

        count = str(gpus)
        run_graphmem("plan", "model.py:build", "--gpus", count, "--steps", "3", *planned, *card)
        stages = json.loads(Path("out.json").read_text())["stages"]
        run_graphmem("run", "--nproc-per-node", count, "--rank", str(rank), *card, "train.py")
        return stages[rank % len(stages)], json.loads(Path("out.json").read_text())

    return made


@pytest.fixture
def compare(both: Callable[..., tuple[Any, Any]]) -> Callable[..., None]:
    """Check that a plan has the peak and the reserved bytes of a script's rank 0."""

    def check(script: str, *planned: str, **changes: Any) -> None:
        plan, run = both(script, *planned, **changes)

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


@pytest.mark.parametrize(
    ("schedule", "runs"), [("gpipe", "ScheduleGPipe"), ("1f1b", "Schedule1F1B")]
)
def test_a_pipeline_stage_holds_what_is_planned_and_what_it_sends_and_receives(
    both: Callable[..., tuple[Any, Any]], schedule: str, runs: str
) -> None:
    """The last stage in the optimizer's step: a plan has let go what a `PipelineStage` keeps.

    That is the outputs of all four micro-batches, 64 x 5000 floats each, and as many buffers to
    receive 64 x 512 into. Tensors are compared, not blocks, whose tails depend on where they lie.
    """
    layout = ("--pp", "2", "--stages", "2,1", "--micro-batches", "4", "--schedule", schedule)

    plan, run = both(PIPELINED.format(schedule=runs), *layout, rank=1)

    assert plan["phase"] == run["peak"]["phase"] == "optimizer"
    planned, ran = plan["at_peak"], run["at_peak"]["by_category"]
    for category in ("parameter", "gradient", "optimizer_state", "activation", "workspace"):
        assert planned.get(category, 0) == ran[category], category
    assert ran["temporary"] - planned["temporary"] == 4 * 64 * 5000 * 4
    assert ran["communication"] - planned.get("communication", 0) == 4 * 64 * 512 * 4


@pytest.fixture
def decoder(tmp_path: Path) -> str:
    """The model of `fixtures/ranks` with a `build()`; beside it, what parallelizes it."""
    source = FIXTURES / "ranks" / "tensor_parallel.py"
    (tmp_path / source.name).write_text(source.read_text())
    return (FIXTURES / "ranks" / "model.py").read_text() + BUILD


@pytest.mark.parametrize(
    ("planned", "changes"),
    [
        (["--micro-batches", "2"], {"micro_batches": 2}),
        (["--checkpoint", "blocks.*"], {"block": "checkpoint_wrapper(block)"}),
    ],
)
def test_fsdp_over_tensor_parallelism_is_planned_as_it_runs(
    compare: Callable[..., None], decoder: str, planned: list[str], changes: dict[str, Any]
) -> None:
    """Where the peak is in a block, not in the loss."""
    usual = {"replicas": 2, "sequence_parallel": False, "block": "block", "micro_batches": 1}
    script = DIVIDED.format(**usual | changes)

    compare(script, "--tp", "2", "--fsdp", *planned, gpus=4, model=decoder)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_loss_parallel_and_sequence_parallel_hold_more_than_planned(
    both: Callable[..., tuple[Any, Any]], decoder: str, sequence_parallel: bool
) -> None:
    """`loss_parallel` has a rank's half of the logits once more, 4 x 256 x 2048 floats.

    It adds the gradient of the chosen class to the exponentials, where one kernel does both
    (torch/distributed/tensor/parallel/loss.py). `SequenceParallel` keeps the whole input of the
    products by columns, two of each block and the head's, not half of its 4 x 256 x 512 floats.
    """
    script = DIVIDED.format(
        replicas=1, sequence_parallel=sequence_parallel, block="block", micro_batches=1
    )
    layout = ("--tp", "2", *(["--sp"] if sequence_parallel else []))

    plan, run = both(script, *layout, model=decoder)

    planned, ran = plan["at_peak"], run["at_peak"]["by_category"]
    for category in ("parameter", "gradient", "optimizer_state", "communication", "workspace"):
        assert planned.get(category, 0) == ran[category], category
    inputs = (2 * 4 + 1) * 4 * 256 * 256 * 4 if sequence_parallel else 0
    more = run["peak"]["allocated"] - plan["peak"] - 4 * 256 * 2048 * 4 - inputs
    per_token = 4 * 256 * 8
    assert 0 <= more < 6 * per_token
