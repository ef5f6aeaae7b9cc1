"""A layout: over how many ranks each kind of parallelism splits a training step, and how.

The degrees multiply to the number of ranks: `data * tensor * pipeline * context`. Expert
parallelism regroups the data-parallel ranks (Megatron-LM, megatron/core/parallel_state.py), so
it is not a separate factor.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from graphmem.parallel.messages import (
    DegreeBelowOneError,
    ExpertDegreeError,
    InterleavedMicroBatchesError,
    InterleaveWithoutPipelineError,
    SequenceWithoutTensorError,
    WholeParametersOffloadedError,
    WrongWorldError,
)


class Sharding(enum.StrEnum):
    """Which state data-parallel ranks shard."""

    REPLICATED = "ddp"
    """Nothing: every rank has everything (`DistributedDataParallel`)."""
    ZERO_1 = "zero-1"
    """Optimizer state."""
    ZERO_2 = "zero-2"
    """Optimizer state and gradients."""
    ZERO_3 = "zero-3"
    """Optimizer state, gradients and parameters."""
    FSDP = "fsdp"
    """Like ZeRO-3, as done by `torch.distributed.fsdp.fully_shard`."""

    @property
    def shares_gradients(self) -> bool:
        """Whether a rank keeps only a share of the gradients."""
        return self in (Sharding.ZERO_2, Sharding.ZERO_3, Sharding.FSDP)

    @property
    def shares_parameters(self) -> bool:
        """Whether a rank keeps only a share of the parameters."""
        return self in (Sharding.ZERO_3, Sharding.FSDP)

    @property
    def shares_optimizer(self) -> bool:
        """Whether a rank keeps only a share of the optimizer state."""
        return self is not Sharding.REPLICATED


class Schedule(enum.StrEnum):
    """The order in which a pipeline's stages run their micro-batches."""

    GPIPE = "gpipe"
    """All forward, then all backward (Huang et al. 2018, arXiv:1811.06965)."""
    ONE_F_ONE_B = "1f1b"
    """After a warm-up, alternately one forward, one backward (PipeDream-Flush,
    arXiv:2006.09503)."""
    INTERLEAVED = "interleaved"
    """The same with several model chunks a rank (Narayanan et al. 2021, arXiv:2104.04473)."""


class Precision(enum.StrEnum):
    """The precision of parameters, gradients and master weights."""

    TRACED = "as-traced"
    """As in `build()`: fp32 weights, with autocast if it is on."""
    BF16_MASTER = "bf16-master"
    """bf16 weights; the optimizer keeps fp32 weights and moments, gradients are summed in fp32."""


@dataclass(frozen=True)
class Layout:
    """How a training step is split.

    Attributes:
        data, tensor, pipeline, context: degrees; they multiply to the number of ranks.
        expert: degree of expert parallelism; a divisor of `data`.
        sharding: which state data-parallel ranks shard.
        sequence_parallel: whether tensor-parallel ranks split norms and dropouts along the
            sequence.
        micro_batches: how many parts a data-parallel rank's batch is cut into.
        schedule: the pipeline's schedule.
        interleave: model chunks on each pipeline rank.
        reshard_after_forward: free a unit's gathered parameters after its forward pass.
        bucket_view: DDP's `gradient_as_bucket_view`.
        precision: the precision of weights, gradients and master copies.
        offload: what lives on the host: "optimizer", "parameters".
        stages: the number of blocks of each pipeline stage; if empty, balanced by bytes.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    sharding: Sharding = Sharding.REPLICATED
    sequence_parallel: bool = False
    micro_batches: int = 1
    schedule: Schedule = Schedule.ONE_F_ONE_B
    interleave: int = 1
    reshard_after_forward: bool = True
    bucket_view: bool = False
    precision: Precision = Precision.TRACED
    offload: frozenset[str] = field(default_factory=frozenset)
    stages: tuple[int, ...] = ()

    @property
    def ranks(self) -> int:
        """How many GPUs it takes."""
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def sharding_ranks(self) -> int:
        """The number of ranks over which ZeRO and FSDP shard: those that hold the same weights.

        Context-parallel ranks see different tokens with the same weights, so they are replicas as
        well (Megatron-LM's data-parallel-with-context-parallel group, parallel_state.py).
        """
        return self.data * self.context

    @property
    def shares_parameters(self) -> bool:
        """Whether a rank keeps only a share of the parameters, and gathers the others."""
        return self.sharding.shares_parameters and self.sharding_ranks > 1

    @property
    def has_buckets(self) -> bool:
        """Whether DDP reduces the gradients, in its buckets."""
        replicated = self.sharding in (Sharding.REPLICATED, Sharding.ZERO_1)
        return replicated and self.precision is Precision.TRACED and self.sharding_ranks > 1

    @property
    def communicators(self) -> int:
        """How many NCCL communicators a rank has: one for each degree, as of a `DeviceMesh`.

        Ranks that share weights are one group (`sharding_ranks`), besides that of context.
        """
        groups = (self.sharding_ranks, self.tensor, self.pipeline, self.expert)
        return sum(size > 1 for size in groups) + (self.context > 1 and self.data > 1)

    def __str__(self) -> str:
        """Such as `dp 8 · tp 8 · pp 4, zero-1, 8 micro-batches (1f1b)`."""
        degrees = {
            "dp": self.data,
            "tp": self.tensor,
            "pp": self.pipeline,
            "cp": self.context,
            "ep": self.expert,
        }
        parts = [" · ".join(f"{name} {n}" for name, n in degrees.items() if n > 1) or "one GPU"]
        if self.sequence_parallel:
            parts[0] += " + sp"
        if self.sharding_ranks > 1:
            parts.append(self.sharding)
        if self.micro_batches > 1 or self.pipeline > 1:
            how = f" ({self.schedule})" if self.pipeline > 1 else ""
            parts.append(f"{self.micro_batches} micro-batches{how}")
        if self.precision is not Precision.TRACED:
            parts.append(self.precision)
        if self.offload:
            parts.append("offload " + "+".join(sorted(self.offload)))
        return ", ".join(parts)


def check_degrees(layout: Layout, ranks: int) -> None:
    """Check that a layout uses exactly the given number of ranks.

    Raises:
        InputError: it does not; the hint names the nearest that does.
    """
    for name in ("data", "tensor", "pipeline", "context", "expert", "micro_batches", "interleave"):
        if getattr(layout, name) < 1:
            raise DegreeBelowOneError(getattr(layout, name), name)
    if layout.ranks != ranks:
        model = layout.tensor * layout.pipeline * layout.context
        degrees = f"dp {layout.data} x tp {layout.tensor} x pp {layout.pipeline} x "
        degrees += f"cp {layout.context}"
        raise WrongWorldError(degrees, layout.ranks, ranks, _nearest_degrees(model, ranks))
    if layout.data % layout.expert:
        nearest = nearest_divisor(layout.data, layout.expert)
        raise ExpertDegreeError(layout.expert, layout.data, nearest)
    if layout.interleave > 1 and layout.pipeline == 1:
        raise InterleaveWithoutPipelineError()
    if layout.schedule is Schedule.INTERLEAVED and layout.micro_batches % layout.pipeline:
        raise InterleavedMicroBatchesError(
            layout.pipeline,
            layout.micro_batches,
            -(-layout.micro_batches // layout.pipeline) * layout.pipeline,
        )
    if layout.sequence_parallel and layout.tensor == 1:
        raise SequenceWithoutTensorError()
    if "parameters" in layout.offload and not layout.shares_parameters:
        raise WholeParametersOffloadedError()


def _nearest_degrees(model: int, ranks: int) -> str:
    if ranks % model == 0:
        return f"--dp {ranks // model} makes them {ranks}"
    below, above = ranks // model * model, -(-ranks // model) * model
    nearest = above if not below or above - ranks < ranks - below else below
    return f"the nearest number of ranks is {nearest}, with --dp {nearest // model}"


def nearest_divisor(number: int, wanted: int) -> int:
    """The divisor of `number` nearest to `wanted`; the smaller one in a tie."""
    divisors = [each for each in range(1, number + 1) if number % each == 0]
    return min(divisors, key=lambda each: (abs(each - wanted), each))
