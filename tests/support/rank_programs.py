"""Small training steps on several ranks, one for each wrapper, on the CPU (`rank_oracle`)."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
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


def local_sgd() -> TrainingStep:
    """Gradients are summed in the first iteration, then weights in every second."""
    model = DistributedDataParallel(_model())
    state = post_localSGD_hook.PostLocalSGDState(None, dist.new_group([dist.get_rank()]), 1)
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    averager = PeriodicModelAverager(period=2, warmup_steps=1)
    return _trained(model, PostLocalSGDOptimizer(_adamw(model.parameters()), averager))


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


def fsdp1_replicated() -> TrainingStep:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    return fsdp1(sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=mesh)


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


# ---- the sequence split --------------------------------------------------------------------------


class _Rotate(torch.autograd.Function):
    """Send a tensor to the next rank and receive the previous one's; gradients go back."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return _rotated(tensor, 1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return _rotated(gradient, -1)


def _rotated(tensor: torch.Tensor, by: int) -> torch.Tensor:
    rank, size = dist.get_rank(), dist.get_world_size()
    sent = tensor.contiguous()
    received = torch.empty_like(sent)
    messages = [
        dist.P2POp(dist.isend, sent, (rank + by) % size),
        dist.P2POp(dist.irecv, received, (rank - by) % size),
    ]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
    return received


class Attention(nn.Module):
    """Attention of this rank's rows to those of all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(rows).chunk(3, -1)
        return rows + self.attend(q, k, v)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class Ring(Attention):
    """Keys and values go round; each part's result is weighed by its logsumexp (2310.01889)."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        output, weight = torch.zeros_like(q), q.new_full((len(q), 1), float("-inf"))
        for _ in range(dist.get_world_size()):
            scores = q @ k.t()
            part = scores.logsumexp(-1, keepdim=True)
            total = torch.logaddexp(weight, part)
            output = output * (weight - total).exp() + (scores - total).exp() @ v
            weight = total
            k, v = _Rotate.apply(k), _Rotate.apply(v)
        return output


class Gathered(Attention):
    """Each rank gathers all keys and values, as Llama 3 did (2407.21783, 3.3.2)."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        gather = functional.all_gather_tensor_autograd
        k, v = (gather(each.contiguous(), 0, dist.group.WORLD) for each in (k, v))
        return (q @ k.t()).softmax(-1) @ v


class Heads(Attention):
    """Each rank exchanges its rows of all heads for all rows of some, and back (2309.14509)."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (self.exchanged(each) for each in (q, k, v))
        output = (q @ k.t()).softmax(-1) @ v
        size = dist.get_world_size()
        parts = functional.all_to_all_single_autograd(output, None, None, dist.group.WORLD)
        return torch.cat(parts.chunk(size), -1)

    def exchanged(self, rows: torch.Tensor) -> torch.Tensor:
        parts = torch.cat(rows.chunk(dist.get_world_size(), -1))
        return functional.all_to_all_single_autograd(parts, None, None, dist.group.WORLD)


def context_parallel(attention: Callable[[], nn.Module]) -> TrainingStep:
    return _summing(_model(attention))


def _summing(model: nn.Module, own: Iterable[torch.Tensor] = ()) -> TrainingStep:
    """Train with gradients that are summed by hand, except for those that a rank has alone."""
    optimizer = _adamw(model.parameters())
    alone = {id(each) for each in own}
    shared = [each for each in model.parameters() if id(each) not in alone]

    def iterate() -> None:
        model(torch.randn(ROWS, WIDTH)).square().mean().backward()
        for each in shared:
            dist.all_reduce(each.grad)
        optimizer.step()
        optimizer.zero_grad()

    return TrainingStep(step=iterate)


# ---- experts -------------------------------------------------------------------------------------


class Experts(nn.Module):
    """One expert a rank; rows are sent in unequal parts, which the others learn first."""

    def __init__(self, *, is_functional: bool) -> None:
        super().__init__()
        self.expert = Block()
        self.is_functional = is_functional

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        rank, size = dist.get_rank(), dist.get_world_size()
        shares = [1 + (rank + each) % size for each in range(size - 1)]
        sent = torch.tensor([*shares, len(rows) - sum(shares)])
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        parts, others = sent.tolist(), received.tolist()
        tokens = self.expert(self.exchange(rows, others, parts))
        return rows + self.exchange(tokens, parts, others)

    def exchange(self, rows: torch.Tensor, received: list[int], sent: list[int]) -> torch.Tensor:
        if self.is_functional:
            group = dist.group.WORLD
            return functional.all_to_all_single_autograd(rows, received, sent, group)
        output = rows.new_empty(sum(received), WIDTH)
        return dist_nn.all_to_all_single(output, rows, received, sent)


def expert_parallel(*, is_functional: bool = False) -> TrainingStep:
    model = _model(partial(Experts, is_functional=is_functional))
    experts = (block.expert.parameters() for block in model if isinstance(block, Experts))
    return _summing(model, itertools.chain(*experts))


# ---- pipelines -----------------------------------------------------------------------------------

MICROBATCHES = 4
V_SHAPED = (ScheduleZBVZeroBubble, ScheduleDualPipeV)
"""Schedules whose first rank has the first stage and the last."""


def pipeline(kind: Any = ScheduleGPipe, chunks: int = 1) -> TrainingStep:
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = _model(blocks=2 * chunks * size - 1)
    stages, parts = [], []
    for chunk in range(chunks):
        number = chunk * size + rank
        if kind in V_SHAPED and chunk:
            number = 2 * size - 1 - rank
        parts.append(nn.Sequential(*list(whole)[2 * number : 2 * number + 2]))
        stages.append(PipelineStage(parts[-1], number, size * chunks, torch.device("cpu")))
    loss_of = lambda found, wanted: (found - wanted).square().mean()  # noqa: E731
    schedule = kind(stages if chunks > 1 else stages[0], MICROBATCHES, loss_fn=loss_of)
    optimizer = _adamw(each for part in parts for each in part.parameters())
    del whole

    def iterate() -> None:
        inputs = [torch.randn(MICROBATCHES * ROWS, WIDTH)] if rank == 0 else []
        if rank == (0 if kind in V_SHAPED else size - 1):
            targets = torch.randn(MICROBATCHES * ROWS, CLASSES)
            schedule.step(*inputs, target=targets, losses=[])
        else:
            schedule.step(*inputs)
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
    "local sgd": local_sgd,
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
    "looped": partial(pipeline, ScheduleLoopedBFS, 2),
    "zero bubble in v": partial(pipeline, ScheduleZBVZeroBubble, 2),
    "dual pipe in v": partial(pipeline, ScheduleDualPipeV, 2),
    "context parallel by ring": partial(context_parallel, Ring),
    "context parallel gathered": partial(context_parallel, Gathered),
    "context parallel by heads": partial(context_parallel, Heads),
    "expert parallel": expert_parallel,
    "expert parallel functional": partial(expert_parallel, is_functional=True),
}
JOINED = ("ddp joined unevenly", "ddp with unused joined unevenly")
TOGETHER = (*JOINED, "expert parallel", "expert parallel functional")
"""Programs whose ranks go by what the others do."""
OF_FOUR: dict[str, Callable[[], TrainingStep]] = {
    "fsdp replicated": fsdp_replicated,
    "fsdp1 replicated": fsdp1_replicated,
    "context parallel by ring of four": partial(context_parallel, Ring),
    "tensor parallel sharded": tensor_parallel_sharded,
    "gpipe of four": pipeline,
}
