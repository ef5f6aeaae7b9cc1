"""The moment in a prediction at which a recording starts.

Recordings start at different moments of a program. A *start* names one in the terms of the step
graph:
  (1) `setup`: the beginning, from an empty device;
  (2) `step N`: the beginning of iteration N, counted from 0, so `step 2` comes after two steps of
      warm-up;
  (3) `step N forward`, `step N backward`, `step N optimizer`: the first such phase of it.

The prediction is always simulated from its beginning, so that the allocator has its state at the
start, and compared from the start on. A recording ends where the trace ends, which the number of
iterations decides. A printed figure may instead cover only the iteration or the phase that begins
at a start.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from graphmem.graph import Phase, PhaseName, StepGraph
from graphmem.verify.messages import NoStartError, NotMomentError

_FORM = re.compile(r"setup|step (?P<step>\d{1,9})(?: (?P<phase>forward|backward|optimizer))?")


@dataclass(frozen=True)
class Start:
    """A moment of a trace, and the iteration or phase that begins there.

    Attributes:
        step: the iteration; None for the very beginning.
        phase: a phase of it; None for its beginning.
    """

    step: int | None = None
    phase: PhaseName | None = None

    def __str__(self) -> str:
        if self.step is None:
            return "setup"
        return f"step {self.step}" + (f" {self.phase}" if self.phase else "")

    def tick_in(self, graph: StepGraph) -> int:
        """The tick of that moment; events from it on are compared.

        Raises:
            InputError: the trace has no such moment.
        """
        return 0 if self.step is None else self._phases(graph)[0].start

    def last_tick_in(self, graph: StepGraph) -> int:
        """The last tick of the iteration or phase, or of the setup.

        Raises:
            InputError: the trace has no such moment.
        """
        if self.step is None:
            return Start(0).tick_in(graph) - 1
        return self._phases(graph)[-1].end

    def _phases(self, graph: StepGraph) -> list[Phase]:
        """The phases of the iteration, or only the first with the phase's name."""
        assert self.step is not None
        phases = graph.phases_of(self.step)
        if self.phase is not None:
            phases = [phase for phase in phases if phase.name is self.phase][:1]
        if phases:
            return phases
        raise NoStartError(str(self), graph.steps)


def parse_start(text: str) -> Start:
    """Parse the name of a start.

    Raises:
        InputError: it does not name a start.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise NotMomentError(text)
    if match["step"] is None:
        return Start()
    return Start(int(match["step"]), PhaseName(match["phase"]) if match["phase"] else None)
