"""The blocks of a model, such as the layers of a decoder, and the operations of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphmem.graph import PhaseName, StepGraph
from graphmem.parallel.messages import NoBlocksError


@dataclass(frozen=True)
class Blocks:
    """The repeated blocks of a model, which run one after another.

    Attributes:
        name: the name of the list that holds them, such as "layers".
        count: how many there are.
        of_op: the block of each operation, from -1 (before the first) to `count` (after the last).
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

    They are the longest list whose children have the same class, of those that train if any does:
    not those of a frozen teacher or encoder. In a tie it is the outermost.

    Args:
        graph: the trace.
        name: the list to use instead.

    Raises:
        InputError: there is no list of that name.
    """
    lists: dict[str, list[str]] = {}
    for module in graph.modules:
        parent, _, last = module.rpartition(".")
        if last.isdigit():
            lists.setdefault(parent, []).append(graph.modules[module])
    if name is not None and name not in lists:
        raise NoBlocksError(name, ", ".join(sorted(lists)) or "none")
    alike = {each: kinds for each, kinds in lists.items() if len(set(kinds)) == 1}
    trained = [each for each, trains in graph.parameters.items() if trains]

    def order(each: str) -> tuple[bool, int, int, str]:
        is_frozen = not any(parameter.startswith(f"{each}.") for parameter in trained)
        return bool(each) and is_frozen, -len(alike[each]), each.count("."), each

    chosen = name or min(alike, key=order, default=None)
    if chosen is None:
        return Blocks("", 0, [0] * len(graph.ops))
    count = len(lists[chosen])
    return Blocks(chosen, count, _blocks_of_ops(graph, chosen, count))


def _blocks_of_ops(graph: StepGraph, name: str, count: int) -> list[int]:
    """The block of each operation.

    An operation between blocks belongs to the block that ran last; one before the first or after
    the last block belongs to neither.
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
