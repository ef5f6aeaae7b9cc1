"""The trace as phases: setup, and each step's forward, backward and optimizer.

The *events* of `simulate` (births and deaths of storages, in order) are numbered. A phase is a
range of events. Blocks run one after another, so a pipeline stage's part of a forward or backward
phase is a range as well.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from graphmem.events import Birth, LifeEvent
from graphmem.forward_passes import MODEL
from graphmem.graph import Op, PhaseName, StepGraph, Storage
from graphmem.kernel_program import Program
from graphmem.parallel.messages import SeveralForwardPassesError
from graphmem.simulate import life_events


@dataclass(frozen=True)
class TracedPhase:
    """One phase of the trace.

    Attributes:
        step: the number of the step; -1 is the setup.
        phase: the name of the phase.
        start, end: its first event, and the one after its last.
    """

    step: int
    phase: PhaseName
    start: int
    end: int


class TracedPhases:
    """A trace with its events numbered.

    Attributes:
        graph: the trace.
        events: births and deaths of storages, in order.
        phases: in execution order; they cover all events.
        birth, death: events by storage id; storages that outlive the trace have no death.
        storages: by id, including the scratch memory of kernels.
    """

    def __init__(self, graph: StepGraph, programs: Mapping[int, Program]) -> None:
        self.graph = graph
        self.events: list[LifeEvent] = life_events(graph, programs)
        self.birth: dict[int, int] = {}
        self.death: dict[int, int] = {}
        self.storages: dict[int, Storage] = {}
        for number, event in enumerate(self.events):
            lives = self.birth if isinstance(event, Birth) else self.death
            lives[event.storage.id] = number
            self.storages[event.storage.id] = event.storage
        self._ticks = [event.tick for event in self.events]
        starts = [self.event_after(phase.start - 1) for phase in graph.phases]
        ends = [*starts[1:], len(self.events)]
        self.phases = [
            TracedPhase(phase.step, phase.name, start, end)
            for phase, start, end in zip(graph.phases, starts, ends, strict=True)
        ]
        self._phase_of = [
            i for i, each in enumerate(self.phases) for _ in range(each.start, each.end)
        ]

    def event_after(self, tick: int) -> int:
        """The first event after a tick."""
        return bisect_right(self._ticks, tick)

    def event_from(self, tick: int) -> int:
        """The first event at a tick or after it."""
        return bisect_left(self._ticks, tick)

    def event_of(self, op: Op) -> int:
        """The first event at or after an operation's tick."""
        return self.event_from(op.tick)

    def phase_at(self, event: int) -> int:
        """The index of the phase that an event lies in; the last one's after the last event."""
        return self._phase_of[min(event, len(self._phase_of) - 1)]

    def same_place(self, event: int, phase: int, other: int) -> float:
        """Where a phase has what another one has at an event: between the same two operations.

        Not after as many events: the first step's takes workspaces, later ones' free what an
        earlier one left.
        """
        passed = bisect_left(self._ops[phase], self.events[event].tick, key=lambda op: op.tick)
        if passed < len(self._ops[other]):
            return self.event_of(self._ops[other][passed]) - 0.25
        return self.phases[other].end - 0.25

    @cached_property
    def _ops(self) -> dict[int, list[Op]]:
        """The operations of each phase."""
        found: dict[int, list[Op]] = {i: [] for i in range(len(self.phases))}
        for op in self.graph.ops:
            found[op.phase].append(op)
        return found

    @cached_property
    def models(self) -> dict[int, tuple[int, int]]:
        """By phase, the range of events in which the model runs, without a loss outside of it.

        A loop of the user's own does not tell where its model ends: then it is the whole phase.
        """
        found = {i: (each.start, each.end) for i, each in enumerate(self.phases)}
        ends = {
            i: mark.tick
            for mark in self.graph.marks
            if mark.name == MODEL
            for i, phase in enumerate(self.graph.phases)
            if phase.start <= mark.tick <= phase.end
        }
        for i, tick in ends.items():
            found[i] = found[i][0], self.event_after(tick)
        differentiated = set[int]()
        for op in self.graph.ops:
            forward = None if op.forward is None else self.graph.ops[op.forward]
            if forward is None or op.phase in differentiated or forward.phase not in ends:
                continue
            if forward.tick < ends[forward.phase]:
                differentiated.add(op.phase)
                found[op.phase] = self.event_of(op), found[op.phase][1]
        return found

    @cached_property
    def by_phase(self) -> dict[tuple[int, PhaseName], int]:
        """The index of each step's phases, for steps with one forward and one backward pass."""
        return {(each.step, each.phase): i for i, each in enumerate(self.phases)}

    def check_one_micro_batch(self) -> None:
        """Check that each step has exactly one forward and one backward pass to repeat.

        Raises:
            InputError: it has more, for example because it accumulates gradients.
        """
        if len(self.by_phase) != len(self.phases):
            raise SeveralForwardPassesError()
