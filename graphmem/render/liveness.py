"""The liveness graph: groups of operations, the storages between them, and an edge for each owner.

  (1) Operations of one phase whose modules have the same name, cut at `depth` and without layer
      numbers, form one group; those of a module that matches `expand` are drawn one by one.
  (2) A storage is drawn if it is alive at the peak, or if one of its owners releases it in a
      different group than the one that made it. Storages with the same maker, category and owners
      form one node.
  (3) An edge leads from the maker to the storage, and for each owner from the storage to the group
      in which that owner releases it.

Only the iteration with the peak is drawn.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import networkx as nx

from graphmem.analysis import Analysis
from graphmem.graph import Op, Owner, OwnerKind, PhaseName
from graphmem.render.lifetimes import Clock, Lifetime, categories_of, category_of, lifetimes
from graphmem.render.messages import NothingDrawnError, UnknownAroundError

PEAK = "peak"
OUTSIDE = "(outside any module)"
_MOST_GROUPS = 30
_MOST_STORAGES = 28
_NEIGHBOURS = 12
_DEEPEST = 8


@dataclass(frozen=True)
class View:
    """What to draw, and in which detail.

    Attributes:
        depth: how many parts of module names to keep; None for as many as stay readable.
        expand: patterns of modules whose operations are drawn one by one.
        phase: draw only this phase.
        around: `peak`, an operation (its name in `graphmem graph`, or its index) or a module.
    """

    depth: int | None = None
    expand: tuple[str, ...] = ()
    phase: PhaseName | None = None
    around: str | None = None


@dataclass(frozen=True)
class OpGroup:
    """Operations drawn as one node."""

    phase: PhaseName
    module: str
    op: int | None = None


@dataclass
class OpNode:
    """The content of an operation node: how many there are, and the targets that allocate."""

    group: OpGroup
    first: int
    count: int = 0
    targets: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class StorageGroup:
    """Storages drawn as one node; `ends` has each owner's label and the group that releases it."""

    maker: OpGroup | None
    category: str
    is_at_peak: bool
    ends: frozenset[tuple[str, OpGroup]]


@dataclass
class StorageNode:
    """The content of a storage node."""

    group: StorageGroup
    lives: list[Lifetime] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """The bytes of all blocks."""
        return sum(life.block for life in self.lives)


@dataclass(frozen=True)
class Liveness:
    """The graph of `OpGroup` and `StorageGroup` nodes, with their content.

    Attributes:
        left_out: the smaller storages that are not drawn.
    """

    graph: nx.MultiDiGraph[OpGroup | StorageGroup]
    ops: dict[OpGroup, OpNode]
    storages: list[StorageNode]
    left_out: list[StorageNode]


def liveness(analysis: Analysis, view: View) -> Liveness:
    """Build the liveness graph of the step with the peak.

    Raises:
        InputError: nothing matches the view.
    """
    chosen = _chosen_ops(analysis, view)
    if not chosen:
        raise NothingDrawnError()
    groups = _groups(analysis, view, chosen)
    nodes = _op_nodes(chosen, groups)
    considerable = analysis.report.peak.allocated // 1000
    storages = sorted(
        _storage_nodes(analysis, groups),
        key=lambda node: (
            not (node.group.is_at_peak and node.nbytes >= considerable),
            -node.nbytes,
        ),
    )
    drawn, left_out = storages[:_MOST_STORAGES], storages[_MOST_STORAGES:]
    graph: nx.MultiDiGraph[OpGroup | StorageGroup] = nx.MultiDiGraph()
    for node in drawn:
        graph.add_node(node.group)
        if node.group.maker is not None:
            graph.add_edge(node.group.maker, node.group)
        for label, end in sorted(node.group.ends, key=str):
            graph.add_edge(node.group, end, label=label)
    return Liveness(graph, {key: nodes[key] for key in nodes if key in graph}, drawn, left_out)


def _chosen_ops(analysis: Analysis, view: View) -> list[Op]:
    graph = analysis.graph
    step = analysis.report.peak.step
    ops = [op for op in graph.ops if graph.phases[op.phase].step == step]
    if view.phase is not None:
        ops = [op for op in ops if graph.phases[op.phase].name is view.phase]
    if view.around is None:
        return ops
    centre = _operation_at(analysis, view.around)
    if centre is not None:
        return [op for op in ops if abs(op.index - centre) <= _NEIGHBOURS]
    found = [op for op in ops if f"{op.module}.".startswith(f"{view.around}.")]
    if not found:
        raise UnknownAroundError(view.around)
    return found


def _operation_at(analysis: Analysis, around: str) -> int | None:
    """The index of the named operation; None if it may be a module."""
    if around == PEAK:
        return Clock(analysis.graph).op_at(analysis.timeline.peak()[0].tick)
    if around.isdecimal():
        return int(around)
    name = around.removeprefix("%")
    named = analysis.graph.nodes.names().items()
    return next((op.index for op, each in named if isinstance(op, Op) and each == name), None)


def _groups(analysis: Analysis, view: View, chosen: Sequence[Op]) -> dict[int, OpGroup]:
    """The group of each drawn operation, by its index."""
    phases = analysis.graph.phases
    alone = view.around is not None and _operation_at(analysis, view.around) is not None
    if view.depth is not None:
        depths: Sequence[int] = (view.depth,)
    else:
        depths = range(_DEEPEST, 0, -1)
    found: dict[int, OpGroup] = {}
    for depth in depths:
        found = {}
        for op in chosen:
            phase = phases[op.phase].name
            if alone or any(fnmatchcase(op.module, pattern) for pattern in view.expand):
                found[op.index] = OpGroup(phase, op.module or OUTSIDE, op.index)
            else:
                found[op.index] = OpGroup(phase, folded(op.module, depth))
        if sum(group.op is None for group in set(found.values())) <= _MOST_GROUPS:
            break
    return found


def folded(module: str, depth: int) -> str:
    """A module's name without layer numbers, cut at `depth`."""
    parts = [re.sub(r"^\d+$", "*", part) for part in module.split(".")[:depth]]
    return ".".join(parts) or OUTSIDE


def _op_nodes(chosen: Sequence[Op], groups: dict[int, OpGroup]) -> dict[OpGroup, OpNode]:
    nodes: dict[OpGroup, OpNode] = {}
    for op in chosen:
        group = groups[op.index]
        node = nodes.setdefault(group, OpNode(group, op.index))
        node.count += 1
        if op.births or group.op is not None:
            node.targets[op.target.removeprefix("aten.").partition(".")[0]] += 1
    return nodes


def _storage_nodes(analysis: Analysis, groups: dict[int, OpGroup]) -> Iterator[StorageNode]:
    peak, _ = analysis.timeline.peak()
    clock = Clock(analysis.graph)
    nodes: dict[StorageGroup, StorageNode] = {}
    categories = categories_of(analysis)
    for life in lifetimes(analysis):
        maker = groups.get(-1 if life.storage.op is None else life.storage.op)
        ends = frozenset(_ends(life, maker, groups, clock.op_before))
        is_at_peak = life.holds_at(peak)
        if not ends and not (is_at_peak and maker is not None):
            continue
        group = StorageGroup(maker, str(category_of(life, peak, categories)), is_at_peak, ends)
        nodes.setdefault(group, StorageNode(group)).lives.append(life)
    yield from nodes.values()


def _ends(
    life: Lifetime,
    maker: OpGroup | None,
    groups: dict[int, OpGroup],
    op_before: Callable[[int], int],
) -> Iterator[tuple[str, OpGroup]]:
    """Clause (3): for each owner that releases in a different drawn group, its label and the group.

    A nameless reference is drawn only if no other owner releases in the same group.
    """
    labels: dict[OpGroup, set[str]] = {}
    for owner in life.storage.owners:
        if owner.end is None or owner.end <= owner.start:
            continue
        end = groups.get(op_before(owner.end))
        if end is not None and end != maker:
            labels.setdefault(end, set()).add(_label(owner))
    for end, found in labels.items():
        for label in found - {""} or {""}:
            yield label, end


def _label(owner: Owner) -> str:
    if owner.kind is OwnerKind.SAVED_TENSOR:
        return owner.name or "saved for backward"
    if owner.kind is OwnerKind.VARIABLE:
        return owner.name
    return owner.kind.replace("_", " ")
