"""When a program that runs is searched for leaks (`graphmem.report.growth` defines them).

A storage counts if it is alive when another iteration begins at least two iterations after its own,
from the second on: the first one creates the optimizer's state. Holders are searched while the
program runs, because its variables are gone afterwards: once the memory at the beginning of
iterations has risen twice for good, in whichever of them, and ever more rarely.

A program that goes on after what it kept was freed does not leak.

A large leak ends a program before that, and so does a program of few iterations. At a refused
request, and at such an end, the first iterations count as well, if complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from graphmem.graph import StepGraph, Storage
from graphmem.report.growth import FEWEST_IF_BRIEF, FEWEST_ITERATIONS, Leak, leaks_of, lines_on
from graphmem.retention import Retention, kept_of

_SETTLED = 2
"""The first iteration that begins with all of the optimizer's state and the last one's results."""


@dataclass(frozen=True)
class IterationStart:
    """The memory held when an iteration began."""

    iteration: int
    tick: int
    allocated: int


class LeakDetector:
    """Samples the device when an iteration begins, and reports the leaks."""

    def __init__(
        self,
        graph: StepGraph,
        holders_of: Callable[[list[int]], dict[int, Retention]],
        block_bytes: Callable[[Storage], int],
    ) -> None:
        """Start without samples.

        Args:
            graph: the step graph that grows.
            holders_of: finds the holders of storages, by id, at this moment of the program.
            block_bytes: the size of a live storage's block, else 0.
        """
        self._graph = graph
        self._holders_of = holders_of
        self._block_bytes = block_bytes
        self._next_search = FEWEST_ITERATIONS + 2
        self._lasting: list[int] = []  # what iterations began with, and none since with less
        self.starts: list[IterationStart] = []
        self.leaks: list[Leak] = []

    def begin_iteration(self, start: IterationStart, alive: list[Storage]) -> None:
        """Sample the device at the beginning of an iteration.

        Args:
            start: the memory held now.
            alive: the live storages.
        """
        self.starts.append(start)
        self._forget_freed(alive)
        if start.iteration >= _SETTLED:
            self._note(start.allocated)
        if start.iteration >= self._next_search and self._has_grown():
            self._next_search = start.iteration * 3 // 2
            self._search(alive)

    def refuse(self, alive: list[Storage]) -> None:
        """Sample the device at a refused request, while the holders' functions are on the stack."""
        if len(self.starts) > FEWEST_IF_BRIEF:
            self._search(alive, is_brief=True)

    def finish(self, alive: list[Storage]) -> None:
        """Sample the device at the end of the program, while its globals exist."""
        if len(self.starts) > FEWEST_ITERATIONS + 1:
            if self._has_grown():
                self._search(alive)
        elif len(self.starts) > FEWEST_IF_BRIEF and not self.leaks:
            self._search(alive, is_brief=True)
            self.leaks = [leak for leak in self.leaks if leak.holder is not None]

    def report_lines(self) -> Iterator[str]:
        """The lines of the report."""
        return lines_on(self.leaks, self._graph)

    def _forget_freed(self, alive: list[Storage]) -> None:
        """Forget what was freed since, as by a list that is emptied after each epoch."""
        if self.leaks:
            held = {storage.id for storage in alive}
            self.leaks = [
                leak for leak in self.leaks if any(each.id in held for each in leak.largest)
            ]

    def _note(self, allocated: int) -> None:
        while self._lasting and self._lasting[-1] >= allocated:
            self._lasting.pop()
        self._lasting.append(allocated)

    def _has_grown(self) -> bool:
        return len(self._lasting) >= FEWEST_ITERATIONS

    def _search(self, alive: list[Storage], *, is_brief: bool = False) -> None:
        ticks = [start.tick for start in self.starts]
        counted = range(len(ticks) - 1) if is_brief else range(1, len(ticks) - 2)
        kept = kept_of(alive, ticks, counted)
        held = self._holders_of(list(kept))
        bounded = {number for number, each in held.items() if each.is_bounded}
        kept = {number: by for number, by in kept.items() if number not in bounded}
        found = leaks_of(self._graph, kept, held, self._block_bytes, is_brief=is_brief)
        self.leaks = found or self.leaks
