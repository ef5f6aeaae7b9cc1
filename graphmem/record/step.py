"""What one capture found, as every reader takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from graphmem.graph import StepGraph
from graphmem.report.schema import OnCard
from graphmem.runtime import Runtime
from graphmem.simulate import Timeline


@dataclass(frozen=True)
class Observed:
    """What a program met while it ran on a virtual GPU, which no replay finds again.

    Attributes:
        timeline: as the program's own device had it, with its streams, pools, limits and refusals.
        sections: lines of the report by their heading, such as "memory that grows".
        on_card: how it fared; None where something else than memory ended it.
    """

    timeline: Timeline
    sections: Mapping[str, Sequence[str]] = field(default_factory=dict)
    on_card: OnCard | None = None


@dataclass(frozen=True)
class TracedStep:
    """One capture.

    Attributes:
        name: the target, as the user wrote it.
        runtime: the machine that it was captured for.
        graph: operations, storages, owners, phases.
        observed: of a program that ran by itself; None of a trace.
        batch: the first dimension of the inputs, where a trace could change it; it is not saved.
    """

    name: str
    runtime: Runtime
    graph: StepGraph
    observed: Observed | None = None
    batch: int | None = None


@dataclass(frozen=True)
class Section:
    """Lines of the report that were written while the program ran."""

    lines: Sequence[str]

    def report_lines(self) -> Sequence[str]:
        """The lines."""
        return self.lines
