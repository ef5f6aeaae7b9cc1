"""A prediction to compare: the step graph, the kernels' memory, and the simulation."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from graphmem.allocator import AllocatorSettings, CachingAllocator, Device, MemoryState, OutOfMemory
from graphmem.allocator.addresses import DEFAULT_DRIVER, Driver
from graphmem.analysis import Request, traced_step
from graphmem.annotations import KERNEL_MEMORY
from graphmem.capacity import Replayable
from graphmem.events import Birth, Death, LifeEvent
from graphmem.graph import StepGraph
from graphmem.kernel_program import Program
from graphmem.pipeline import run_passes
from graphmem.simulate import Timeline, life_events, simulate
from graphmem.torch_releases.differences import NEWEST_TRIED, Release
from graphmem.verify.changes import Change, predicted_changes
from graphmem.verify.figures import Figures
from graphmem.verify.window import Start


@dataclass(frozen=True)
class Prediction:
    """A prediction of a target's memory.

    Attributes:
        name: the target's name.
        graph: the traced step.
        programs: what kernels allocate besides their results, by operation.
        settings: the allocator's configuration.
        driver: decides where new segments lie.
        release: the version of torch whose rules the allocator follows.
        tape: what the allocator was asked for, if the step used streams or pools.
    """

    name: str
    graph: StepGraph
    programs: Mapping[int, Program] = field(default_factory=dict)
    settings: AllocatorSettings | None = None
    driver: Driver = DEFAULT_DRIVER
    release: Release = NEWEST_TRIED
    tape: Replayable | None = None

    def changes(self, start: Start) -> list[Change]:
        """The events from `start` on."""
        first = self._first_change(start)
        return predicted_changes(self._events[first:], self.graph)

    def figures(self, start: Start, last: Start | None = None) -> Figures:
        """The bytes from `start` on; everything before is simulated as well.

        Args:
            start: the beginning of the window.
            last: the iteration or phase that ends it; None: it ends with the trace.
        """
        timeline = self._timeline
        before = max(0, timeline.index_at(start.tick_in(self.graph) - 1))
        end = None if last is None else 1 + timeline.index_at(last.last_tick_in(self.graph))
        allocated = timeline.moments.allocated[before:end]
        reserved = timeline.moments.reserved[before:end]
        return Figures(
            base_allocated=allocated[0],
            peak_allocated=max(allocated),
            end_allocated=allocated[-1],
            peak_reserved=max(reserved),
            end_reserved=reserved[-1],
        )

    def shortage(self, room_bytes: int) -> MemoryState | None:
        """The state of memory when a request fails; None: everything fits.

        Args:
            room_bytes: the card's memory for the allocator.
        """
        try:
            self._simulated(room_bytes)
        except OutOfMemory as error:
            return error.state
        return None

    @cached_property
    def _events(self) -> list[LifeEvent]:
        if self.tape is None:
            return life_events(self.graph, self.programs)
        events = (moment.event for moment in self._timeline.moments)
        return [each for each in events if isinstance(each, Birth | Death)]

    @cached_property
    def _timeline(self) -> Timeline:
        return self._simulated(None)

    def _simulated(self, room_bytes: int | None) -> Timeline:
        device = Device(room_bytes, driver=self.driver)
        allocator = CachingAllocator(self.settings, device=device, release=self.release)
        if self.tape is not None:
            played = self.tape.replay(allocator)
            if played.refused is not None:
                raise played.refused.error
            return played.timeline
        return simulate(self.graph, self.programs, allocator)

    def _first_change(self, start: Start) -> int:
        before = start.tick_in(self.graph) - 1
        return bisect_right(self._events, before, key=lambda event: event.tick)


def predict(
    target: str | Callable[[], Any],
    request: Request,
    settings: AllocatorSettings | None = None,
    progress: Callable[[str], None] = lambda message: None,
    driver: Driver | None = None,
) -> Prediction:
    """Trace a target and run the passes.

    Args:
        target: as for `graphmem.analyze`.
        request: the machine and the options.
        settings: the allocator's configuration in the recording; that of the request's
            environment takes precedence.
        progress: called with a description of each step.
        driver: decides where new segments lie; None: the card's.

    Raises:
        InputError: the target or an option cannot be used; the message says why.
    """
    step = traced_step(target, request, progress)
    runtime = step.runtime
    if runtime.allocator_conf is not None:
        settings = runtime.allocator_settings
    memory = run_passes(step.graph, runtime).of(KERNEL_MEMORY)
    driver = driver or runtime.gpu.driver or DEFAULT_DRIVER
    tape = None if step.observed is None else step.observed.tape
    return Prediction(
        step.name, step.graph, memory.programs, settings, driver, step.runtime.release, tape
    )
