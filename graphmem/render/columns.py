"""Where the boxes of the liveness graph stand.

(1) Each phase has a column of operations, in order of execution: forward goes down, backward
    beside it goes up, so that what a layer saves stands between its two halves.
(2) Storages stand right of the phase that made them; those that the first phase makes and
    releases itself, or that nothing drawn made, stand left of it.
(3) The first phase's storages are stacked in order of birth. All else is as near as its order
    and its neighbours allow to the mean of what it is connected with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from graphmem.graph import PhaseName
from graphmem.render.liveness import Liveness, OpGroup, StorageGroup, StorageNode

Group = OpGroup | StorageGroup
Size = tuple[float, float]

_BETWEEN_COLUMNS = 84.0
_BETWEEN_BOXES = 9.0


@dataclass(frozen=True)
class Box:
    """A box by its centre; y grows downwards."""

    x: float
    y: float
    width: float
    height: float


def placed(liveness: Liveness, sizes: Mapping[Group, Size]) -> dict[Group, Box]:
    """The boxes of all nodes, by the sizes they need."""
    columns = _columns(liveness)
    heights = _heights(liveness, columns, sizes)
    boxes: dict[Group, Box] = {}
    left = 0.0
    for column in columns:
        width = max((sizes[group][0] for group in column), default=0.0)
        for group in column:
            boxes[group] = Box(left + width / 2, heights[group], width, sizes[group][1])
        left += width + _BETWEEN_COLUMNS if column else 0.0
    return boxes


def goes_up(liveness: Liveness, phase: PhaseName) -> bool:
    """Whether a phase's operations stand in the order of execution from bottom to top."""
    is_beside_forward = any(group.phase is PhaseName.FORWARD for group in liveness.ops)
    return phase is PhaseName.BACKWARD and is_beside_forward


def _columns(liveness: Liveness) -> list[list[Group]]:
    """Storages at the left; then for each phase its operations, and the storages right of them."""
    phases = [phase for phase in PhaseName if any(each.phase is phase for each in liveness.ops)]
    columns: list[list[Group]] = [[]]
    for phase in phases:
        nodes = [node for group, node in liveness.ops.items() if group.phase is phase]
        nodes.sort(key=lambda node: node.first, reverse=goes_up(liveness, phase))
        columns += [[node.group for node in nodes], []]
    for storage in sorted(liveness.storages, key=_birth):
        maker = storage.group.maker
        stays = maker is not None and all(end.phase is maker.phase for _, end in storage.group.ends)
        if maker is None or (stays and maker.phase is phases[0] and len(phases) > 1):
            columns[0].append(storage.group)
        else:
            columns[2 * phases.index(maker.phase) + 2].append(storage.group)
    return columns


def _birth(node: StorageNode) -> int:
    return min(life.first for life in node.lives)


def _heights(
    liveness: Liveness, columns: Sequence[Sequence[Group]], sizes: Mapping[Group, Size]
) -> dict[Group, float]:
    """Clause (3): first the storages of the first phase, then the columns beside them."""
    found: dict[Group, float] = {}
    middle = 2 if len(columns) > 2 else 0
    order = [middle, *range(middle - 1, -1, -1), *range(middle + 1, len(columns))]
    for index in order:
        column = list(columns[index])
        wanted = {group: _mean_beside(liveness, group, found) for group in column}
        if isinstance(next(iter(column), None), StorageGroup) and index != middle:
            column.sort(key=lambda group: wanted[group])
        tall = [sizes[group][1] for group in column]
        found |= zip(column, spread([wanted[group] for group in column], tall), strict=True)
    return found


def _mean_beside(liveness: Liveness, group: Group, known: Mapping[Group, float]) -> float:
    near = [*liveness.graph.predecessors(group), *liveness.graph.successors(group)]
    heights = [known[each] for each in near if each in known]
    return sum(heights) / len(heights) if heights else 0.0


def spread(wanted: Sequence[float], heights: Sequence[float]) -> list[float]:
    """The centres nearest to the wanted ones, in this order and without overlap.

    Least squares by pooling adjacent violators, after the room that each needs is subtracted.
    """
    offsets = [0.0]
    for upper, lower in pairwise(heights):
        offsets.append(offsets[-1] + (upper + lower) / 2 + _BETWEEN_BOXES)
    pools: list[tuple[float, int]] = []
    for centre, offset in zip(wanted, offsets, strict=False):
        pools.append((centre - offset, 1))
        while len(pools) > 1 and pools[-2][0] >= pools[-1][0]:
            (above, more), (below, fewer) = pools[-2:]
            pools[-2:] = [((above * more + below * fewer) / (more + fewer), more + fewer)]
    level = [mean for mean, count in pools for _ in range(count)]
    return [mean + offset for mean, offset in zip(level, offsets, strict=False)]
