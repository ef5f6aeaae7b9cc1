"""The peak's bounds where Python's cycle collector freed memory that it was not asked to free.

What the collector frees, it could have freed at another moment:

(1) at the lowest, right after the last use: the last operation that read or wrote the storage, and
    the end of every owner that was in no cycle. Before that, it cannot have been garbage. That
    holds for what `gc.collect()` freed as well, which the collector could have found before;
(2) at the highest, when the program next calls `gc.collect()`, or never.

Both replay the run's events with these deaths moved. A replay knows no streams and no private
pools, so a bound is the run's own peak plus what moving the deaths changes in the replay.

Not covered:
- variables of a frame that was still running when the collector freed the traceback that held it:
  had the collector come later, they would have outlived the frame's return;
- a use of which the step graph has no operation, such as a kernel in Triton: the lowest is then
  lower than it could be;
- a request that failed in the run stays the end of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import msgspec

from graphmem.capacity import CardReplay, capacity_of, replay
from graphmem.cycle_collector import collection_at, freed_by_chance
from graphmem.events import Death, Event
from graphmem.graph import OwnerKind, StepGraph, Storage
from graphmem.kernel_program import tick_of
from graphmem.report.collector_info import CollectorInfo, HighestBytes
from graphmem.report.schema import Report
from graphmem.runtime import Runtime
from graphmem.simulate import Timeline

Deaths = Mapping[int, int | None]
"""The ticks at which storages die instead, by their ids; None for those that stay."""


def with_collector(report: Report, graph: StepGraph, runtime: Runtime, run: Timeline) -> Report:
    """Add to the report of a run the bounds of its peak, if the collector could have changed it.

    Args:
        report: the report.
        graph: the step graph.
        runtime: the machine.
        run: the timeline of the run.
    """
    freed = freed_by_chance(graph)
    if not freed:
        return report
    card = report.on_card
    capacity = capacity_of(runtime.new_allocator()) if card is None else card.capacity
    events = list(run.moments.events())
    as_run, lowest, highest = (
        _replayed(_with_deaths(events, deaths), runtime, capacity)
        for deaths in ({}, _earliest(graph), _latest(graph))
    )
    peak = _peak(CardReplay(run))
    least = HighestBytes(
        peak.allocated - max(0, as_run.allocated - lowest.allocated),
        peak.reserved - max(0, as_run.reserved - lowest.reserved),
    )
    most = HighestBytes(
        peak.allocated + max(0, highest.allocated - as_run.allocated),
        peak.reserved + max(0, highest.reserved - as_run.reserved),
    )
    if least == peak == most:
        return report
    largest = min(freed, key=lambda storage: (-storage.nbytes, storage.id))
    name, source = _origin(largest, graph)
    found = CollectorInfo(
        freed=len(freed),
        largest=largest.nbytes,
        name=name,
        shape=list(largest.shape),
        dtype=largest.dtype,
        source=source,
        lowest=least,
        highest=most,
        margin=None if card is None else capacity - most.reserved,
    )
    return msgspec.structs.replace(report, collector=found)


def _replayed(events: Sequence[Event], runtime: Runtime, capacity: int) -> HighestBytes:
    """The peak of a replay on the card; on one with unlimited memory if it is too small."""
    on_card = runtime.new_allocator(context_bytes=runtime.gpu.memory_bytes - capacity)
    found = replay(events, on_card)
    if found.refused is not None:
        found = replay(events, runtime.new_allocator(bounded=False))
    return _peak(found)


def _peak(run: CardReplay) -> HighestBytes:
    return HighestBytes(run.allocated_bytes, run.reserved_bytes)


def _with_deaths(events: Sequence[Event], deaths: Deaths) -> list[Event]:
    """The events with some deaths at other ticks."""
    found: list[Event] = []
    moved: list[Event] = []
    for event in events:
        # A block that was freed without its storage has a death at a tick of its own.
        if (
            isinstance(event, Death)
            and event.storage.id in deaths
            and event.tick == event.storage.death
        ):
            tick = deaths[event.storage.id]
            moved += [] if tick is None else [Death(tick, event.storage)]
        else:
            found.append(event)
    return sorted([*found, *moved], key=lambda event: event.tick)


def _earliest(graph: StepGraph) -> Deaths:
    """The death of each storage that a collection freed, right after its last use (clause 1)."""
    found: dict[int, int] = {}
    for storage in graph.storages:
        ends = [owner.end for owner in storage.owners]
        others = [end for end in ends if collection_at(end, graph.collections) is None]
        if None not in others and len(others) < len(ends):
            found[storage.id] = max([storage.birth, *filter(None, others)])
    for op in graph.ops:
        tensors = (*op.outputs, *(node.tensor for node in op.all_input_nodes))
        used = {each.storage for each in tensors if each is not None} | set(op.births)
        for number in found.keys() & used:
            found[number] = max(found[number], tick_of(op, graph))
    return found


def _latest(graph: StepGraph) -> Deaths:
    """The death of each storage that a collection freed unasked, when asked next (clause 2)."""
    asked = [each.start for each in graph.collections if each.is_asked]
    by_chance = [each for each in graph.collections if not each.is_asked]
    found: dict[int, int | None] = {}
    for storage in graph.storages:
        ends = [collection_at(owner.end, by_chance) for owner in storage.owners]
        last = max((each.end for each in ends if each is not None), default=None)
        if last is None or storage.death is None:
            continue
        position = bisect_left(asked, last)
        # An owner in no cycle may hold it for longer.
        found[storage.id] = max(asked[position], storage.death) if position < len(asked) else None
    return found


def _origin(storage: Storage, graph: StepGraph) -> tuple[str, str | None]:
    """The variable that held a storage, and its line or that of the operation."""
    named = (each for each in storage.owners if each.kind is OwnerKind.VARIABLE and each.name)
    variable, op = next(named, None), graph.op_of(storage)
    name = "" if variable is None else variable.name
    sources = [each.source for each in (variable, op) if each is not None]
    return name, next((str(each) for each in sources if each is not None), None)
