"""A program's verdict, in the form of a trace's verdict.

A program does not fit if a refused request ended it. One that the program handled, for example by a
smaller batch, is told apart: the cache that was emptied for it has not helped.
"""

from __future__ import annotations

from graphmem.allocator import CachingAllocator
from graphmem.capacity import allowed_by, capacity_of
from graphmem.graph import StepGraph
from graphmem.online.online_simulator import OnlineSimulator, RefusedRequest
from graphmem.pipeline import Annotations
from graphmem.report.build import AliveStorages, place_of
from graphmem.report.memory import HOLDERS_AT_REFUSAL
from graphmem.report.schema import OnCard, Refusal
from graphmem.simulate import Timeline


def verdict_of(simulator: OnlineSimulator, *, ran_out: bool, grows_by: int) -> OnCard:
    """The verdict of the card.

    Args:
        simulator: knows the machine, what the program did and what was refused.
        ran_out: whether a refused request ended it.
        grows_by: the bytes that it keeps of every iteration, so that any card fills up.
    """
    timeline = simulator.timeline()
    runtime, graph = simulator.runtime, simulator.recorder.graph
    context = runtime.context
    last = simulator.refusals[-1] if ran_out and simulator.refusals else None
    allocator = simulator.memory.allocator
    reserved = max(timeline.moments.reserved)
    margin, on_card = _left(allocator, reserved, last)
    more = context.estimate_bytes - context.least_bytes + runtime.gpu.memory_surplus_bytes
    less = context.most_bytes - context.estimate_bytes + runtime.gpu.memory_spread_bytes
    return OnCard(
        fits=last is None,
        within_estimate=-more <= on_card < less
        and (last is None or margin == on_card)
        and not (grows_by and ran_out),
        capacity=capacity_of(allocator),
        context=context.estimate_bytes,
        context_uncertainty=context.most_bytes - context.estimate_bytes,
        context_spread=context.estimate_bytes - context.least_bytes,
        memory_spread=runtime.gpu.memory_spread_bytes,
        memory_surplus=runtime.gpu.memory_surplus_bytes,
        allocated=timeline.peak()[0].allocated,
        reserved=reserved,
        margin=margin,
        cache_emptied=allocator.num_rescues if last is None else allocator.num_alloc_retries,
        caught=len(simulator.refusals) - (last is not None),
        refused=None if last is None else _refusal(last, graph, timeline),
        late=simulator.memory.slow.most_late,
        grows_by=grows_by,
        allowed=allowed_by(allocator),
    )


def _left(
    allocator: CachingAllocator, reserved: int, refused: RefusedRequest | None
) -> tuple[int, int]:
    """What is left to reserve, and what the card has left; below zero, what a request lacked."""
    if refused is None:
        return capacity_of(allocator) - reserved, (allocator.device.capacity_bytes or 0) - reserved
    on_card, allowed = refused.free - refused.tried, allowed_by(allocator)
    if allowed is None:
        return on_card, on_card
    return min(on_card, allowed - refused.reserved - refused.tried), on_card


def _refusal(refusal: RefusedRequest, graph: StepGraph, timeline: Timeline) -> Refusal:
    op = refusal.op
    place = place_of(graph, refusal.tick, None)
    moment = timeline.moments[refusal.moment]
    return Refusal(
        step=place.step,
        phase=place.phase,
        op=op.target if op is not None else None,
        module=op.module if op is not None else "",
        source=str(op.source) if op is not None and op.source is not None else None,
        requested=refusal.requested,
        tried=refusal.tried,
        allocated=refusal.allocated,
        reserved=refusal.reserved,
        free=refusal.free,
        message=refusal.message,
        held=AliveStorages(graph, Annotations({}), timeline, moment).build(HOLDERS_AT_REFUSAL),
    )
