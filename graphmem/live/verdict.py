"""A program's verdict, in the form of a trace's verdict.

A program does not fit if a refused request ended it. A refused request that the program handled,
for example by a smaller batch, counts only as the emptied cache that it caused.
"""

from __future__ import annotations

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
    capacity, allowed = capacity_of(allocator), allowed_by(allocator)
    margin = on_card = capacity - reserved if last is None else last.free - last.tried
    if last is not None and allowed is not None:
        margin = min(on_card, allowed - last.reserved - last.tried)
    more = context.estimate_bytes - context.least_bytes + runtime.gpu.memory_surplus_bytes
    less = context.most_bytes - context.estimate_bytes + runtime.gpu.memory_spread_bytes
    return OnCard(
        fits=last is None,
        within_estimate=margin == on_card
        and -more <= on_card < less
        and not (grows_by and ran_out),
        capacity=capacity,
        context=context.estimate_bytes,
        context_uncertainty=context.most_bytes - context.estimate_bytes,
        context_spread=context.estimate_bytes - context.least_bytes,
        memory_spread=runtime.gpu.memory_spread_bytes,
        memory_surplus=runtime.gpu.memory_surplus_bytes,
        allocated=timeline.peak()[0].allocated,
        reserved=reserved,
        margin=margin,
        cache_emptied=simulator.memory.allocator.num_alloc_retries,
        refused=None if last is None else _refusal(last, graph, timeline),
        late=simulator.memory.slow.most_late,
        grows_by=grows_by,
        allowed=allowed,
    )


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
