"""Leaks: memory that a program keeps from iteration to iteration, and the variables that keep it.

A storage is *kept* by iteration k if it was born in an iteration from the second on, is alive when
another begins at least two iterations later, and is no parameter, buffer, gradient or optimizer
state. Memory *grows* where the kept storages were born in three iterations or more. The first
iteration does not count: it creates the optimizer's state.

Holders are searched while the program runs, because its variables are gone afterwards: in
iterations that begin with more memory than the last two, ever more rarely.

A large leak ends a program before that. At a refused request the first iterations count as well, if
complete, and two are enough if one variable holds the same storages of both: a variable that a loop
replaces in each iteration holds those of one only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from graphmem.graph import OwnerKind, StepGraph, Storage
from graphmem.live.holders import Referrer, Retention
from graphmem.live.largest import largest, most_common
from graphmem.units import format_both, format_shape

FEWEST_ITERATIONS = 3
FEWEST_AT_REFUSAL = 2
_LARGEST = 3
_GRAPH = ", with the graph that autograd keeps for it"
_LASTING = (
    OwnerKind.PARAMETER,
    OwnerKind.BUFFER,
    OwnerKind.GRADIENT,
    OwnerKind.OPTIMIZER_STATE,
    OwnerKind.WORKSPACE,
)


@dataclass(frozen=True)
class IterationStart:
    """The memory held when an iteration began."""

    iteration: int
    tick: int
    allocated: int


@dataclass(frozen=True)
class Leak:
    """The memory that one holder keeps of each iteration.

    Attributes:
        holder: None if no variable was found.
        bytes_each: allocated bytes kept of the newest iteration.
        iterations: how many iterations left something.
        total: allocated bytes kept of all iterations.
        largest: the largest storages of the newest iteration.
        through_graph: whether autograd's graph holds some of it.
    """

    holder: Referrer | None
    bytes_each: int
    iterations: int
    total: int
    largest: tuple[Storage, ...]
    through_graph: bool


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
        self.starts: list[IterationStart] = []
        self.leaks: list[Leak] = []

    def begin_iteration(self, start: IterationStart, alive: list[Storage]) -> None:
        """Sample the device at the beginning of an iteration.

        Args:
            start: the memory held now.
            alive: the live storages.
        """
        self.starts.append(start)
        if start.iteration >= self._next_search and self._has_grown():
            self._next_search = start.iteration * 3 // 2
            self._search(alive)

    def refuse(self, alive: list[Storage]) -> None:
        """Sample the device at a refused request, while the holders' functions are on the stack."""
        if len(self.starts) > FEWEST_AT_REFUSAL:
            self.leaks = list(self._leaks(alive, at_refusal=True)) or self.leaks

    def finish(self, alive: list[Storage]) -> None:
        """Sample the device at the end of the program, while its globals exist."""
        if len(self.starts) > FEWEST_ITERATIONS + 1 and self._has_grown():
            self._search(alive)

    def _search(self, alive: list[Storage]) -> None:
        found = list(self._leaks(alive))
        self.leaks = found or self.leaks

    def report_lines(self) -> Iterator[str]:
        """The lines of the report."""
        for leak in self.leaks:
            holder = leak.holder or "nothing that has a name"
            yield (
                f"{format_both(leak.bytes_each)} more every iteration, {leak.total:,} bytes after "
                f"{leak.iterations} iterations: held by {holder}"
                f"{_GRAPH if leak.through_graph else ''}"
            )
            lines = map(self._line, leak.largest)
            yield from (f"  {line}" for line in most_common(lines, _LARGEST))

    def _line(self, storage: Storage) -> str:
        op = self._graph.op_of(storage)
        made_by = "" if op is None else f" of {op.target.removesuffix('.default')}"
        where = "" if op is None or op.source is None else f" ({op.source})"
        shape = format_shape(storage.shape)
        return f"{format_both(storage.nbytes)}: {storage.dtype} [{shape}]{made_by}{where}"

    def _has_grown(self) -> bool:
        before, last, now = (start.allocated for start in self.starts[-3:])
        return before < last < now

    def _leaks(self, alive: list[Storage], *, at_refusal: bool = False) -> Iterator[Leak]:
        ticks = [start.tick for start in self.starts]
        first, end = (0, len(ticks) - 1) if at_refusal else (1, len(ticks) - 2)
        born: dict[int, int] = {}
        for storage in alive:
            index = bisect_right(ticks, storage.birth) - 1
            if first <= index < end and not any(map(storage.owned_as, _LASTING)):
                born[storage.id] = index
        held = self._holders_of(list(born))
        through_graph = {each.by for each in held.values() if each.through_graph}
        by_holder: dict[Referrer | None, list[Storage]] = {}
        for storage in alive:
            if storage.id in born:
                holder = held[storage.id].by if storage.id in held else None
                by_holder.setdefault(holder, []).append(storage)
        found = [
            self._leak(holder, kept, born, holder in through_graph)
            for holder, kept in by_holder.items()
            if len({born[each.id] for each in kept}) >= FEWEST_ITERATIONS
            or (at_refusal and holder is not None and self._holds_the_same(kept, born))
        ]
        yield from sorted(found, key=lambda leak: -leak.total)

    def _holds_the_same(self, kept: list[Storage], born: dict[int, int]) -> bool:
        """Whether the same lines' storages are kept of both iterations."""
        made: dict[int, Counter[tuple[object, ...]]] = {}
        for storage in kept:
            op = self._graph.op_of(storage)
            source = None if op is None else str(op.source)
            what = (storage.nbytes, storage.shape, storage.dtype, source)
            made.setdefault(born[storage.id], Counter())[what] += 1
        if len(made) < FEWEST_AT_REFUSAL:
            return False
        first, second = made.values()
        return first <= second or second <= first

    def _leak(
        self,
        holder: Referrer | None,
        kept: list[Storage],
        born: dict[int, int],
        through_graph: bool,
    ) -> Leak:
        newest = max(born[storage.id] for storage in kept)
        of_newest = [storage for storage in kept if born[storage.id] == newest]
        of_newest.sort(key=lambda storage: storage.id)
        return Leak(
            holder,
            bytes_each=sum(map(self._block_bytes, of_newest)),
            iterations=len({born[storage.id] for storage in kept}),
            total=sum(map(self._block_bytes, kept)),
            largest=tuple(largest(of_newest, lambda storage: storage.nbytes, _LARGEST)),
            through_graph=through_graph,
        )
