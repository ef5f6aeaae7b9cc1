"""The storages of a timeline, each with the moments of its birth and its death."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from graphmem.analysis import Analysis
from graphmem.graph import Category, OwnerKind, StepGraph, Storage
from graphmem.moments import Moment
from graphmem.pipeline import KnowsReasons
from graphmem.report.build import module_of
from graphmem.report.kept import Categories
from graphmem.report.reasons import reason_for


@dataclass(frozen=True)
class Lifetime:
    """One storage on the timeline.

    Attributes:
        block: the size of its block in bytes.
        first, last: indexes of the moments of its birth and its death; `last` is the number of
            moments if it outlives the trace.
        module: the module it belongs to.
    """

    storage: Storage
    block: int
    first: int
    last: int
    module: str

    def holds_at(self, moment: Moment) -> bool:
        """Whether the storage is alive at that moment."""
        return self.first <= moment.index < self.last


def lifetimes(analysis: Analysis) -> list[Lifetime]:
    """Every storage that has a block, in order of birth."""
    timeline = analysis.timeline
    end = len(timeline.moments)
    deaths = {each.died.id: each.index for each in timeline.moments if each.died is not None}
    return [
        Lifetime(
            storage,
            timeline.block_bytes[storage.id],
            moment.index,
            deaths.get(storage.id, end),
            module_of(storage, analysis.graph),
        )
        for moment in timeline.moments
        if (storage := moment.born) is not None
    ]


def categories_of(analysis: Analysis) -> Categories:
    """The categories of an analysis's storages."""
    return Categories(analysis.graph)


def category_of(life: Lifetime, peak: Moment, categories: Categories) -> Category:
    """One category for a whole lifetime: that at the peak, else activation if it ever was one."""
    storage = life.storage
    if life.holds_at(peak):
        return categories.of(storage, peak.tick)
    saved = storage.owned_as(OwnerKind.SAVED_TENSOR)
    return storage.category_at(storage.birth if saved is None else saved.start)


class Reasons:
    """Why storages are alive: at the peak, or just before their death."""

    def __init__(self, analysis: Analysis) -> None:
        self._graph = analysis.graph
        self._peak, _ = analysis.timeline.peak()
        annotations = analysis.annotations.values()
        self._known = [each for each in annotations if isinstance(each, KnowsReasons)]

    def of(self, life: Lifetime) -> str:
        """The reason in one sentence, as in the report."""
        storage, tick = life.storage, self._telling_tick(life)
        known = [reason for each in self._known for reason in each.reasons_for(storage.id, tick)]
        return reason_for(storage, tick, self._graph, known)

    def _telling_tick(self, life: Lifetime) -> int:
        if life.holds_at(self._peak):
            return self._peak.tick
        death = self._graph.end if life.storage.death is None else life.storage.death
        return max(life.storage.birth, death - 1)


class Clock:
    """Maps ticks to operations and phases."""

    def __init__(self, graph: StepGraph) -> None:
        self._graph = graph
        self._op_ticks = [op.tick for op in graph.ops]

    def op_at(self, tick: int) -> int:
        """The index of the operation running at a tick, or -1 before the first."""
        return bisect_right(self._op_ticks, tick) - 1

    def op_before(self, tick: int) -> int:
        """The index of the last operation that began before a tick, or -1."""
        return bisect_left(self._op_ticks, tick) - 1

    def phase_at(self, tick: int) -> str:
        """The phase and its step in words, such as `step 1 backward`."""
        for phase in self._graph.phases:
            if phase.start <= tick <= phase.end:
                return f"step {phase.step} {phase.name}" if phase.step >= 0 else str(phase.name)
        return "outside any phase"
