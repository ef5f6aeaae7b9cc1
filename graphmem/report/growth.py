"""Leaks: memory that grows with the iterations, and the variables that hold it.

Memory *grows* where storages are kept (`graphmem.retention`) of three iterations or more. A program
that ends sooner, as a trace of three iterations does, has not run long enough for that: there two
iterations are enough if one variable holds the same storages of both. One that a loop replaces in
each iteration holds those of one only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from graphmem.graph import StepGraph, Storage
from graphmem.report.largest import largest, most_common
from graphmem.report.schema import MemoryInfo
from graphmem.retention import Referrer, Retention, kept_of
from graphmem.units import format_both, format_shape

FEWEST_ITERATIONS = 3
FEWEST_IF_BRIEF = 2
_LARGEST = 3
_GRAPH = ", with the graph that autograd keeps for it"


@dataclass(frozen=True)
class Leak:
    """The memory that one holder keeps of each iteration.

    Attributes:
        holder: None if no variable was found.
        bytes_each: allocated bytes kept of the newest iteration.
        iterations: how many iterations left something.
        every: how many iterations pass from one of them to the next, on average: a validation
            after each epoch keeps something of one in many.
        total: allocated bytes kept of all iterations.
        largest: the largest storages of the newest iteration.
        through_graph: whether autograd's graph holds some of it.
    """

    holder: Referrer | None
    bytes_each: int
    iterations: int
    every: float
    total: int
    largest: tuple[Storage, ...]
    through_graph: bool

    @property
    def grows_by(self) -> int:
        """The bytes that an iteration adds, on average."""
        return round(self.bytes_each / self.every)


def with_growth(
    memory: MemoryInfo, graph: StepGraph, block_bytes: Mapping[int, int]
) -> tuple[MemoryInfo, list[str]]:
    """What a traced step leaks: the section on the card with its bytes, and the report's lines.

    The last iteration does not count: the next one would replace what its variables hold.
    """
    starts = [graph.phases_of(step)[0].start for step in range(graph.steps)]
    alive = [graph.storages[number] for number in graph.retained]
    kept = kept_of(alive, starts, range(len(starts) - 1))
    leaks = leaks_of(
        graph, kept, graph.retained, lambda each: block_bytes.get(each.id, 0), is_brief=True
    )
    grows_by = sum(leak.grows_by for leak in leaks)
    on_card = replace(memory.on_card, grows_by=grows_by)
    return replace(memory, on_card=on_card), list(lines_on(leaks, graph))


def leaks_of(
    graph: StepGraph,
    kept: Mapping[int, int],
    held: Mapping[int, Retention],
    block_bytes: Callable[[Storage], int],
    *,
    is_brief: bool,
) -> list[Leak]:
    """The leaks among the storages that iterations keep, the largest first.

    Args:
        graph: the step graph.
        kept: the iteration that keeps each storage, by id.
        held: how each is held, except for storages that no name reaches.
        block_bytes: the size of a live storage's block, else 0.
        is_brief: whether the program has ended too soon for three iterations.
    """
    through_graph = {each.by for each in held.values() if each.through_graph}
    by_holder: dict[Referrer | None, list[Storage]] = {}
    for number in sorted(kept):
        holder = held[number].by if number in held else None
        by_holder.setdefault(holder, []).append(graph.storages[number])
    found = [
        _leak(holder, storages, kept, block_bytes, holder in through_graph)
        for holder, storages in by_holder.items()
        if len({kept[each.id] for each in storages}) >= FEWEST_ITERATIONS
        or (is_brief and holder is not None and _are_the_same(graph, storages, kept))
    ]
    return sorted(found, key=lambda leak: -leak.total)


def _are_the_same(graph: StepGraph, storages: list[Storage], kept: Mapping[int, int]) -> bool:
    """Whether the same lines' storages are kept of both iterations."""
    made: dict[int, Counter[tuple[object, ...]]] = {}
    for storage in storages:
        op = graph.op_of(storage)
        source = None if op is None else str(op.source)
        what = (storage.nbytes, storage.shape, storage.dtype, source)
        made.setdefault(kept[storage.id], Counter())[what] += 1
    if len(made) < FEWEST_IF_BRIEF:
        return False
    first, second = made.values()
    return first <= second or second <= first


def _leak(
    holder: Referrer | None,
    storages: list[Storage],
    kept: Mapping[int, int],
    block_bytes: Callable[[Storage], int],
    through_graph: bool,
) -> Leak:
    keeping = {kept[storage.id] for storage in storages}
    oldest, newest = min(keeping), max(keeping)
    of_newest = [storage for storage in storages if kept[storage.id] == newest]
    return Leak(
        holder,
        bytes_each=sum(map(block_bytes, of_newest)),
        iterations=len(keeping),
        every=(newest - oldest) / (len(keeping) - 1),
        total=sum(map(block_bytes, storages)),
        largest=tuple(largest(of_newest, lambda storage: storage.nbytes, _LARGEST)),
        through_graph=through_graph,
    )


def lines_on(leaks: Iterable[Leak], graph: StepGraph) -> Iterator[str]:
    """The report's lines on leaks."""
    for leak in leaks:
        holder = leak.holder or "nothing that has a name"
        until = f"after {leak.iterations} iterations" if leak.every == 1 else "so far"
        yield (
            f"{format_both(leak.bytes_each)} more {_how_often(leak.every)}, "
            f"{format_both(leak.total)} {until}: held by {holder}"
            f"{_GRAPH if leak.through_graph else ''}"
        )
        lines = (_line(storage, graph) for storage in leak.largest)
        yield from (f"  {line}" for line in most_common(lines, _LARGEST))
        if leak.iterations == FEWEST_IF_BRIEF:  # a buffer that is not full yet looks the same
            yield "  only more iterations can show whether it goes on"


def _how_often(every: float) -> str:
    if round(every) == 1:
        return "every iteration" if every == 1 else "nearly every iteration"
    return f"{'' if every.is_integer() else 'about '}every {round(every)} iterations"


def _line(storage: Storage, graph: StepGraph) -> str:
    op = graph.op_of(storage)
    made_by = "" if op is None else f" of {op.target.removesuffix('.default')}"
    where = "" if op is None or op.source is None else f" ({op.source})"
    shape = format_shape(storage.shape)
    return f"{format_both(storage.nbytes)}: {storage.dtype} [{shape}]{made_by}{where}"
