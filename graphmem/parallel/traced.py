"""The trace as passes over the model: setup, and each step's forward, backward and optimizer.

The changes of `simulate` (births and deaths of storages, in order) are numbered; the number of a
change is its *place*. A pass is a stretch of places. A pipeline stage's part of a forward or
backward pass is a stretch of it, as blocks run one after the other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from graphmem.errors import InputError
from graphmem.graph import Op, PhaseName, StepGraph, Storage
from graphmem.kernel_program import Program
from graphmem.simulate import changes


@dataclass(frozen=True)
class TracedPass:
    """One pass over the model.

    Attributes:
        step: of the trace; -1 is the setup.
        phase: which of them.
        start, end: places of its first change, and behind its last.
    """

    step: int
    phase: PhaseName
    start: int
    end: int


class TracedPasses:
    """A trace with its changes numbered.

    Attributes:
        graph: the trace.
        changes: what `simulate` replays, in order.
        passes: in order; they cover all changes.
        birth, death: places by the storage's id; no death where it outlives the trace.
        storages: by id, scratch memory of kernels included.
    """

    def __init__(self, graph: StepGraph, programs: Mapping[int, Program]) -> None:
        self.graph = graph
        self.changes = changes(graph, programs)
        self.birth: dict[int, int] = {}
        self.death: dict[int, int] = {}
        self.storages: dict[int, Storage] = {}
        for place, (_, born, storage) in enumerate(self.changes):
            (self.birth if born else self.death)[storage.id] = place
            self.storages[storage.id] = storage
        self._ticks = [tick for tick, _, _ in self.changes]
        starts = [self.place_after(phase.start - 1) for phase in graph.phases]
        ends = [*starts[1:], len(self.changes)]
        self.passes = [
            TracedPass(phase.step, phase.name, start, end)
            for phase, start, end in zip(graph.phases, starts, ends, strict=True)
        ]
        self._starts = starts

    def place_after(self, tick: int) -> int:
        """The place of the first change after a tick."""
        return bisect_right(self._ticks, tick)

    def place_of(self, op: Op) -> int:
        """The place of the first change that an operation makes, or could make."""
        return bisect_left(self._ticks, op.tick)

    def pass_at(self, place: int) -> int:
        """Which pass a place lies in."""
        index = bisect_right(self._starts, place) - 1
        while self.passes[index].start == self.passes[index].end:
            index -= 1
        return index

    @cached_property
    def by_phase(self) -> dict[tuple[int, PhaseName], int]:
        """The pass of each phase of each step, where a step has one forward and one backward."""
        return {(each.step, each.phase): i for i, each in enumerate(self.passes)}

    def check_one_micro_batch(self) -> None:
        """See that each step has one forward and one backward pass to be repeated.

        Raises:
            InputError: it has more, as one that accumulates gradients has.
        """
        if len(self.by_phase) != len(self.passes):
            raise InputError(
                "the traced step runs several forward passes: it cannot be cut into micro-batches",
                hint="let build() describe one micro-batch: accumulate=1",
            )


@dataclass(frozen=True)
class Blocks:
    """The blocks of a model that run one after the other, such as the layers of a decoder.

    Attributes:
        name: of the list that holds them, such as "layers".
        count: how many there are.
        of_op: by operation, the block that it belongs to, from -1 (before the first) to `count`
            (behind the last).
    """

    name: str
    count: int
    of_op: Sequence[int]

    @property
    def names(self) -> list[str]:
        """The qualified names of the blocks."""
        prefix = f"{self.name}." if self.name else ""
        return [f"{prefix}{number}" for number in range(self.count)]


def find_blocks(graph: StepGraph, name: str | None = None) -> Blocks:
    """Find the repeated blocks.

    Of the lists whose children have one class, the longest; of equally long ones the outermost.

    Args:
        graph: the trace.
        name: the list to take instead.

    Raises:
        InputError: there is no list of that name.
    """
    lists: dict[str, list[str]] = {}
    for module in graph.modules:
        parent, _, last = module.rpartition(".")
        if last.isdigit():
            lists.setdefault(parent, []).append(graph.modules[module])
    if name is not None and name not in lists:
        raise InputError(
            f"no list of modules is called {name!r}",
            hint=f"there are {', '.join(sorted(lists)) or 'none'}",
        )
    alike = {each: kinds for each, kinds in lists.items() if len(set(kinds)) == 1}
    chosen = name or min(
        alike, key=lambda each: (-len(alike[each]), each.count("."), each), default=None
    )
    if chosen is None:
        return Blocks("", 0, [0] * len(graph.ops))
    count = len(lists[chosen])
    return Blocks(chosen, count, _blocks_of_ops(graph, chosen, count))


def _blocks_of_ops(graph: StepGraph, name: str, count: int) -> list[int]:
    """The block of each operation.

    One outside of the blocks belongs to the block that ran last; in front of the first block and
    behind the last it stands alone.
    """
    found: list[int] = []
    forward, backward = -1, count
    phase = -1
    for op in graph.ops:
        if op.phase != phase:
            phase = op.phase
            forward, backward = -1, count
        own = _block(op.module, name)
        if graph.phases[op.phase].name is PhaseName.BACKWARD:
            if own is None and op.forward is not None:
                own = found[op.forward]
            backward = own if own is not None else backward
            found.append(backward)
        else:
            leaves = forward == count - 1 and own is None and op.module != ""
            forward = own if own is not None else count if leaves else forward
            found.append(forward)
    return found


def _block(module: str, name: str) -> int | None:
    prefix = f"{name}." if name else ""
    if not module.startswith(prefix):
        return None
    number = module[len(prefix) :].partition(".")[0]
    return int(number) if number.isdigit() else None
