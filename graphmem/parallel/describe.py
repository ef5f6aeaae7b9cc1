"""Turn a planner's results into the report of a plan."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from graphmem.compiled_code import GRAPHS_LEFT_OUT
from graphmem.gpus.context import Context
from graphmem.gpus.nccl import FIRST, FURTHER
from graphmem.layer_ranges import fold
from graphmem.parallel.axes.dimensions import Dimensions
from graphmem.parallel.layout import Layout, Precision, Sharding
from graphmem.parallel.planner import Planner, RankPlan
from graphmem.parallel.schema import HostInfo, LayoutInfo, Plan, StageInfo
from graphmem.runtime import Runtime
from graphmem.version import __version__
from graphmem.wording import listed


def _in_mib(nccl: Context) -> tuple[int, int, int]:
    return nccl.estimate_bytes >> 20, nccl.least_bytes >> 20, nccl.most_bytes >> 20


_NCCL = (
    "estimated: what NCCL takes outside PyTorch's allocator, {} MiB for the first communicator "
    "({} to {} were seen) and {} for each further one ({} to {}), one for each degree"
).format(*_in_mib(FIRST), *_in_mib(FURTHER))


def layout_info(layout: Layout, checkpoint: Sequence[str]) -> LayoutInfo:
    """Describe a layout for the report."""
    return LayoutInfo(
        data=layout.data,
        tensor=layout.tensor,
        pipeline=layout.pipeline,
        context=layout.context,
        expert=layout.expert,
        sharding=layout.sharding,
        sequence_parallel=layout.sequence_parallel,
        micro_batches=layout.micro_batches,
        schedule=layout.schedule,
        interleave=layout.interleave,
        precision=layout.precision,
        offload=sorted(layout.offload),
        checkpoint=list(checkpoint),
    )


def describe(
    target: str,
    planner: Planner,
    layout: Layout,
    ranks: Sequence[RankPlan],
    checkpoint: Sequence[str] = (),
) -> Plan:
    """Make the report of a layout."""
    gpu = planner.runtime.gpu
    context = outside_allocator(planner.runtime, layout)
    stages = [_stage(each, gpu.memory_bytes - context) for each in ranks]
    return Plan(
        graphmem=__version__,
        target=target,
        gpu=gpu.title,
        memory=gpu.memory_bytes,
        context=context,
        gpus=layout.ranks,
        layout=layout_info(layout, checkpoint),
        fits=all(stage.headroom >= 0 for stage in stages),
        stages=stages,
        padding=ranks[0].padding,
        divided=list(divided(planner.dimensions)) if layout.tensor > 1 else [],
        notes=[*_notes(layout, planner), *_notes_on_graphs(planner)],
    )


def outside_allocator(runtime: Runtime, layout: Layout) -> int:
    """The bytes that a rank takes outside PyTorch's allocator."""
    return replace(runtime, communicators=layout.communicators).context.estimate_bytes


def _stage(plan: RankPlan, room: int) -> StageInfo:
    timeline, host = plan.timeline, plan.host
    return StageInfo(
        stage=plan.rank,
        blocks=plan.blocks,
        in_flight=plan.in_flight,
        most=dict(timeline.most),
        peak=timeline.peak,
        reserved=timeline.reserved,
        at_peak=dict(timeline.at_peak),
        phase=plan.phase,
        step=plan.step,
        headroom=room - timeline.reserved,
        host=HostInfo(host.optimizer_state, host.parameters, host.gradients, host.pinned),
        traffic=list(plan.traffic),
    )


def divided(dimensions: Dimensions) -> Iterator[str]:
    """Say what tensor parallelism divides, one line for each kind of axis."""
    found: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for column in dimensions.columns:
        key = column.what, tuple(atom.size for atom in column.atoms)
        found.setdefault(key, []).append(column.weight)
    for (what, sizes), weights in found.items():
        size = " x ".join(map(str, sizes))
        more = f" and {len(weights) - 1} more" if len(weights) > 1 else ""
        yield f"{size} {what}: {weights[0]}{more}"


def _notes(layout: Layout, planner: Planner) -> Iterator[str]:
    """Say which parts of a plan are exact and which are modelled."""
    split = layout.tensor * layout.context * layout.pipeline * layout.micro_batches
    if layout.ranks == split == 1 and layout.precision is Precision.TRACED and not layout.offload:
        yield "exact: one GPU, the same events as `graphmem analyze`"
        return
    yield (
        "exact: the bytes and lifetimes of the traced step's storages, divided by the rules of "
        "docs/parallel.md, and the allocator's blocks for them"
    )
    if layout.expert > 1:
        yield (
            "a model: the scratch memory of a kernel is divided like its result; real kernels "
            "choose theirs for the smaller shapes"
        )
    if layout.tensor > 1:
        yield (
            "left out of what tensor parallelism sends: three numbers for each token, of a loss "
            "over divided classes"
        )
    if layout.sharding_ranks > 1:
        yield from _notes_on_sharding(layout, planner.units)
    if layout.expert > 1:
        yield from _notes_on_experts(planner.dimensions)
    if layout.pipeline > 1:
        yield (
            "a model: a stage frees what it sent when its pass ends, and receives when it begins, "
            "as Megatron-LM does; torch.distributed.pipelining also keeps a buffer for each "
            "micro-batch that it receives, and the last stage's outputs until the next step"
        )
    if layout.ranks > 1:
        yield _NCCL


def _notes_on_graphs(planner: Planner) -> Iterator[str]:
    if any(each.what == GRAPHS_LEFT_OUT for each in planner.graph.assumptions):
        yield (
            "left out: the CUDA graphs of compiled code, and the pools that they keep; "
            "`graphmem analyze` follows them on one GPU"
        )


def _notes_on_experts(dimensions: Dimensions) -> Iterator[str]:
    yield (
        "a model: routing is balanced, so that each rank receives as many rows as it sends, tokens "
        "x top-k; a skewed router can send one rank that many rows times the number of ranks"
    )
    if dimensions.whole_experts:
        first, *more = dimensions.whole_experts
        also = f" and {len(more)} more" if more else ""
        yield (
            f"{first}{also}: whole on each rank, because no batched product runs over the first "
            "dimension, so it is not known to count experts"
        )


def _notes_on_sharding(layout: Layout, units: Collection[str]) -> Iterator[str]:
    if layout.sharding is Sharding.REPLICATED and layout.precision is Precision.TRACED:
        yield "DDP: buckets as torch/csrc/distributed/c10d/reducer.cpp makes them"
    elif layout.sharding is Sharding.ZERO_2:
        yield "ZeRO-2: DeepSpeed's buffer of 5e8 gradients (reduce_bucket_size) is counted whole"
    elif layout.sharding is Sharding.ZERO_3:
        yield (
            "ZeRO-3: gathered by blocks, as fully_shard does; DeepSpeed gathers by modules within "
            "stage3_prefetch_bucket_size and stage3_max_live_parameters. Its buffer of 5e8 "
            "gradients (reduce_bucket_size) is counted whole"
        )
    elif layout.sharding is Sharding.FSDP:
        folded = listed(list(fold(dict.fromkeys(units, 0))))
        each = f"a unit for each of {folded} and one for the rest" if units else "one unit"
        yield f"FSDP: {each}, as fully_shard gathers and reduces"
