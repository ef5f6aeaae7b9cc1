"""The result of one capture, which all readers use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from graphmem.capacity import Replayable
from graphmem.graph import StepGraph
from graphmem.report.schema import MemoryInfo, OnCard
from graphmem.runtime import Runtime
from graphmem.simulate import Timeline


@dataclass(frozen=True)
class Observed:
    """What was observed while a program ran on a virtual GPU, or a trace used streams or pools.

    Attributes:
        timeline: that of the program's device, with its streams, pools, limits and refusals.
        sections: lines of the report by heading, such as "memory that grows".
        on_card: whether it fitted; None if something other than memory ended it.
        memory: of a trace, the section of its report.
        tape: of a trace, what the allocator was asked for; it is not saved.
    """

    timeline: Timeline
    sections: Mapping[str, Sequence[str]] = field(default_factory=dict)
    on_card: OnCard | None = None
    memory: MemoryInfo | None = None
    tape: Replayable | None = None


@dataclass(frozen=True)
class TracedStep:
    """One capture.

    Attributes:
        name: the target, as the user wrote it.
        options: what else the user wrote, except for the card: options of a trace, arguments of a
            script.
        runtime: the machine that it was captured for.
        graph: operations, storages, owners, phases.
        observed: observations of `graphmem run`, or of a trace that used streams or pools.
        batch: the first dimension of the inputs, if a trace can change it; it is not saved.
    """

    name: str
    runtime: Runtime
    graph: StepGraph
    observed: Observed | None = None
    batch: int | None = None
    options: str = ""


@dataclass(frozen=True)
class Section:
    """Report lines written while the program ran."""

    lines: Sequence[str]

    def report_lines(self) -> Sequence[str]:
        """The lines."""
        return self.lines
