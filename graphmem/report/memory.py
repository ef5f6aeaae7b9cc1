"""The section `memory` of a report: the allocator's pools at the peak, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from graphmem.allocator import EVERYBODYS, CachingAllocator, SegmentInfo
from graphmem.capacity import (
    CardReplay,
    Course,
    RefusedStorage,
    Replayable,
    Verdict,
    allowed_by,
    judge,
    replay,
)
from graphmem.graph import StepGraph
from graphmem.pipeline import Annotations
from graphmem.report.build import AliveStorages, place_of
from graphmem.report.schema import Fragmentation, MemoryInfo, OnCard, PoolInfo, Refusal
from graphmem.runtime import Runtime
from graphmem.simulate import Timeline, segments_after

HOLDERS_AT_REFUSAL = 5


def memory_info(
    runtime: Runtime,
    graph: StepGraph,
    annotations: Annotations,
    timeline: Timeline,
    tape: Replayable | None = None,
) -> MemoryInfo:
    """Describe the allocator's state at the peak, and whether the step fits on the card.

    Args:
        runtime: the machine.
        graph: the step graph.
        annotations: the results of the passes.
        timeline: the timeline with unlimited memory.
        tape: what the allocator was asked for, if the trace was followed.
    """
    moment, _ = timeline.peak()
    unbounded = runtime.new_allocator(bounded=False)
    course: Course
    if tape is None:
        segments = segments_after(timeline.moments.events(moment.index + 1), unbounded)
        course = partial(_replay_of, timeline)
    else:
        segments = tape.replay(unbounded, moment.index).timeline.segments
        course = tape.replay
    verdict = judge(course, runtime, timeline)
    return MemoryInfo(
        reserved=CardReplay(timeline).reserved_bytes,
        pools=pools_of(segments),
        fragmentation=fragmentation_of(segments),
        on_card=_on_card(verdict, runtime, graph, annotations),
    )


def _replay_of(timeline: Timeline, allocator: CachingAllocator) -> CardReplay:
    return replay(timeline.moments.events(), allocator)


def pools_of(segments: Sequence[SegmentInfo]) -> list[PoolInfo]:
    """The small and the large pool, and the private ones."""
    shared = [each for each in segments if each.pool_id == EVERYBODYS]
    private = {each.pool_id for each in segments} - {EVERYBODYS}
    return [
        _pool("small", [each for each in shared if each.is_small]),
        _pool("large", [each for each in shared if not each.is_small]),
        *(
            _pool(f"private {pool_id}", [each for each in segments if each.pool_id == pool_id])
            for pool_id in sorted(private)
        ),
    ]


def fragmentation_of(segments: Sequence[SegmentInfo]) -> Fragmentation:
    """Reserved bytes that hold no tensor."""
    unused = [each for each in segments if not any(block.is_active for block in each.blocks)]
    free_segments = sum(each.size for each in unused)
    active = [block for each in segments for block in each.blocks if block.is_active]
    return Fragmentation(
        inside_blocks=sum(block.size - block.requested for block in active),
        in_split_segments=sum(_free_blocks(segments)) - free_segments,
        in_free_segments=free_segments,
        largest_free_block=max(_free_blocks(segments), default=0),
    )


def _pool(name: str, segments: Sequence[SegmentInfo]) -> PoolInfo:
    free = _free_blocks(segments)
    reserved = sum(each.size for each in segments)
    return PoolInfo(
        pool=name,
        segments=len(segments),
        reserved=reserved,
        allocated=reserved - sum(free),
        free=sum(free),
        largest_free_block=max(free, default=0),
    )


def _free_blocks(segments: Sequence[SegmentInfo]) -> list[int]:
    return [block.size for each in segments for block in each.blocks if not block.is_active]


def _on_card(
    verdict: Verdict, runtime: Runtime, graph: StepGraph, annotations: Annotations
) -> OnCard:
    refused = verdict.replay.refused
    context = runtime.context
    return OnCard(
        fits=verdict.fits,
        within_estimate=not verdict.is_certain,
        capacity=verdict.capacity_bytes,
        context=context.estimate_bytes,
        context_uncertainty=context.most_bytes - context.estimate_bytes,
        context_spread=context.estimate_bytes - context.least_bytes,
        memory_spread=runtime.gpu.memory_spread_bytes,
        memory_surplus=runtime.gpu.memory_surplus_bytes,
        allocated=verdict.replay.allocated_bytes,
        reserved=verdict.replay.reserved_bytes,
        margin=verdict.margin_bytes,
        cache_emptied=verdict.replay.cache_emptied,
        did_without=verdict.replay.did_without,
        allowed=allowed_by(runtime.new_allocator()),
        refused=None
        if refused is None
        else _refusal(refused, verdict.replay.timeline, graph, annotations),
    )


def _refusal(
    refused: RefusedStorage, timeline: Timeline, graph: StepGraph, annotations: Annotations
) -> Refusal:
    state = refused.error.state
    held = AliveStorages(graph, annotations, timeline, timeline.moments[-1])
    return Refusal(
        **place_of(graph, refused.tick, refused.storage)._asdict(),
        requested=refused.error.requested_bytes,
        tried=refused.error.tried_bytes,
        allocated=state.allocated_bytes,
        reserved=state.reserved_bytes,
        free=state.free_bytes,
        message=str(refused.error),
        held=held.build(most=HOLDERS_AT_REFUSAL),
    )
