"""Small training steps on several ranks, one for each wrapper, on the CPU (`rank_oracle`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from graphmem import TrainingStep

WIDTH = 24
ROWS = 6
CLASSES = 7
"""Odd, so that the last layer's shards are uneven."""


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 3 * WIDTH)
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows + self.down(torch.tanh(self.up(self.norm(rows))))


class Recomputed(nn.Module):
    """A block that is recomputed in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = checkpoint(self.block, rows, use_reentrant=False)
        return found


class Buffered(nn.Module):
    """A model with buffers, and a branch that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.unused = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.first(rows))))


class CastForInference(nn.Module):
    """A scale that was cast in inference mode, so that it is an inference tensor, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH, dtype=torch.float64))
        with torch.inference_mode():
            self.scale.data = self.scale.data.float()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.layer(rows) * self.scale.neg()


def _model(block: Callable[[], nn.Module] = Block, blocks: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(block() for _ in range(blocks)), nn.Linear(WIDTH, CLASSES))


def _adamw(parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, foreach=False)


def _trained(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    loss_of: Callable[[torch.Tensor], torch.Tensor] | None = None,
    clip: bool = False,
    rows: int = ROWS,
) -> TrainingStep:
    optimizer = optimizer or _adamw(model.parameters())

    def iterate() -> None:
        output = model(torch.randn(rows, WIDTH))
        loss = output.square().mean() if loss_of is None else loss_of(output)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        optimizer.step()
        optimizer.zero_grad()

    return TrainingStep(step=iterate)


# ---- data parallel -------------------------------------------------------------------------------


def ddp(model: Callable[[], nn.Module] = _model, **options: Any) -> TrainingStep:
    return _trained(DistributedDataParallel(model(), **options))


def ddp_joined(more: int = 0, **options: Any) -> TrainingStep:
    """A batch an iteration, and so many more on each later rank, which the others wait for."""
    model = DistributedDataParallel(_model(), **options)
    optimizer = _adamw(model.parameters())

    def iterate() -> None:
        with Join([model], divide_by_initial_world_size=False):
            for _ in range(1 + more * dist.get_rank()):
                model(torch.randn(ROWS, WIDTH)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()

    return TrainingStep(step=iterate)


def ddp_with_hook() -> TrainingStep:
    model = DistributedDataParallel(_model(), bucket_cap_mb=0.02)
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return _trained(model)


def ddp_accumulating() -> TrainingStep:
    model = DistributedDataParallel(_model())
    optimizer = _adamw(model.parameters())

    def iterate() -> None:
        for part in range(3):
            with model.no_sync() if part < 2 else nullcontext():
                model(torch.randn(ROWS, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return TrainingStep(step=iterate)


def zero() -> TrainingStep:
    model = DistributedDataParallel(_model())
    adamw = partial(torch.optim.AdamW, foreach=False)
    return _trained(model, ZeroRedundancyOptimizer(model.parameters(), adamw))


# ---- sharded -------------------------------------------------------------------------------------


def _sharded(block: Callable[[], nn.Module] = Block, **options: Any) -> Any:
    model = _model(block)
    for each in model:
        fully_shard(each, **options)
    return fully_shard(model, **options)


def fsdp(**options: Any) -> TrainingStep:
    return _trained(_sharded(**options))


def fsdp_clipped() -> TrainingStep:
    return _trained(_sharded(), clip=True)


def fsdp_in_bf16() -> TrainingStep:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return fsdp(mp_policy=policy)


def fsdp_accumulating() -> TrainingStep:
    model = _sharded()
    optimizer = _adamw(model.parameters())

    def iterate() -> None:
        for part in range(2):
            model.set_requires_gradient_sync(part == 1)
            model(torch.randn(ROWS, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return TrainingStep(step=iterate)


def fsdp_replicated() -> TrainingStep:
    return fsdp(mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))


def fsdp1(**options: Any) -> TrainingStep:
    wrapped = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    model = FullyShardedDataParallel(
        _model(), auto_wrap_policy=wrapped, device_id=torch.device("cpu"), **options
    )
    return _trained(model)


# ---- tensor parallel -----------------------------------------------------------------------------


def _split(model: nn.Sequential, mesh: Any, **layouts: Any) -> None:
    """Split the blocks; between them the rows have a layout."""
    between = layouts.get("between", Replicate())
    for block in list(model)[:-1]:
        plan: dict[str, Any] = {
            "up": ColwiseParallel(input_layouts=between),
            "down": RowwiseParallel(output_layouts=between),
        }
        if layouts:
            plan["norm"] = SequenceParallel(sequence_dim=0)
        parallelize_module(block, mesh, plan)


def tensor_parallel(*, losses: bool = False) -> TrainingStep:
    model = _model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    _split(model, mesh)
    if not losses:
        return _trained(model)
    plan = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(model, mesh, {"3": plan})
    optimizer = _adamw(model.parameters())

    def iterate() -> None:
        with loss_parallel():
            output = model(torch.randn(ROWS, WIDTH))
            targets = torch.zeros(ROWS, dtype=torch.int64)
            nn.functional.cross_entropy(output, targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    return TrainingStep(step=iterate)


def sequence_parallel() -> TrainingStep:
    model = _model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    _split(model, mesh, between=Shard(0))
    parallelize_module(model, mesh, {"3": ColwiseParallel(input_layouts=Shard(0))})
    return _trained(model, rows=ROWS // dist.get_world_size())


def tensor_parallel_sharded() -> TrainingStep:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = _model()
    _split(model, mesh["tp"])
    for block in model:
        fully_shard(block, mesh=mesh["dp"])
    return _trained(fully_shard(model, mesh=mesh["dp"]))


# ---- pipelines -----------------------------------------------------------------------------------

MICROBATCHES = 4


def pipeline(kind: Any = ScheduleGPipe, chunks: int = 1) -> TrainingStep:
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = _model(blocks=2 * chunks * size - 1)
    stages, parts = [], []
    for chunk in range(chunks):
        number = chunk * size + rank
        parts.append(nn.Sequential(*list(whole)[2 * number : 2 * number + 2]))
        stages.append(PipelineStage(parts[-1], number, size * chunks, torch.device("cpu")))
    loss_of = lambda found, wanted: (found - wanted).square().mean()  # noqa: E731
    schedule = kind(stages if chunks > 1 else stages[0], MICROBATCHES, loss_fn=loss_of)
    optimizer = _adamw(each for part in parts for each in part.parameters())
    del whole

    def iterate() -> None:
        if rank == 0:
            schedule.step(torch.randn(MICROBATCHES * ROWS, WIDTH))
        elif rank == size - 1:
            schedule.step(target=torch.randn(MICROBATCHES * ROWS, CLASSES), losses=[])
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()

    return TrainingStep(step=iterate)


OF_TWO: dict[str, Callable[[], TrainingStep]] = {
    "ddp": ddp,
    "ddp with views": partial(ddp, gradient_as_bucket_view=True),
    "ddp with small buckets": partial(ddp, bucket_cap_mb=0.02),
    "ddp with unused": partial(ddp, Buffered, find_unused_parameters=True),
    "ddp with inference tensor": partial(ddp, CastForInference, find_unused_parameters=True),
    "ddp with static graph": partial(ddp, partial(_model, Recomputed), static_graph=True),
    "ddp with static views": partial(
        ddp, Buffered, static_graph=True, gradient_as_bucket_view=True
    ),
    "ddp with hook": ddp_with_hook,
    "ddp accumulating": ddp_accumulating,
    "ddp joined": ddp_joined,
    "ddp joined unevenly": partial(ddp_joined, more=1),
    "ddp with unused joined unevenly": partial(ddp_joined, more=1, find_unused_parameters=True),
    "zero": zero,
    "fsdp": fsdp,
    "fsdp gathered once": partial(fsdp, reshard_after_forward=False),
    "fsdp recomputed": partial(fsdp, block=Recomputed),
    "fsdp in bf16": fsdp_in_bf16,
    "fsdp clipped": fsdp_clipped,
    "fsdp accumulating": fsdp_accumulating,
    "fsdp1": fsdp1,
    "fsdp1 with own parameters": partial(fsdp1, use_orig_params=True),
    "fsdp1 by gradients": partial(fsdp1, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP),
    "fsdp1 in bf16": partial(fsdp1, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16)),
    "tensor parallel": tensor_parallel,
    "tensor parallel loss": partial(tensor_parallel, losses=True),
    "sequence parallel": sequence_parallel,
    "gpipe": pipeline,
    "1f1b": partial(pipeline, Schedule1F1B),
    "interleaved": partial(pipeline, ScheduleInterleaved1F1B, 2),
    "zero bubble": partial(pipeline, ScheduleInterleavedZeroBubble, 2),
}
TOGETHER = ("ddp joined unevenly", "ddp with unused joined unevenly")
"""Programs whose ranks go by what the others do."""
OF_FOUR: dict[str, Callable[[], TrainingStep]] = {
    "fsdp replicated": fsdp_replicated,
    "tensor parallel sharded": tensor_parallel_sharded,
    "gpipe of four": pipeline,
}
