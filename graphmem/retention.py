"""What a program keeps from iteration to iteration, and the variables that keep it.

A storage is *kept* by an iteration if it was born in it, is alive later, and is no parameter,
buffer, gradient, optimizer state or workspace.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from graphmem.graph import OwnerKind, Source, Storage

_LASTING = (
    OwnerKind.PARAMETER,
    OwnerKind.BUFFER,
    OwnerKind.GRADIENT,
    OwnerKind.OPTIMIZER_STATE,
    OwnerKind.WORKSPACE,
)


@dataclass(frozen=True)
class Referrer:
    """A variable, and the line that stores objects in it."""

    name: str
    source: Source | None

    def __str__(self) -> str:
        return f"`{self.name}`" if self.source is None else f"`{self.name}` ({self.source})"


@dataclass(frozen=True)
class Retention:
    """How a storage is held.

    Attributes:
        by: the variable.
        through_graph: whether it holds a tensor whose autograd graph holds the storage.
        is_bounded: whether it is bounded, as a replay memory, so that what it holds is no leak.
    """

    by: Referrer
    through_graph: bool
    is_bounded: bool = False


def kept_of(alive: Iterable[Storage], starts: Sequence[int], iterations: range) -> dict[int, int]:
    """The iteration that keeps each storage, by id.

    Args:
        alive: the live storages.
        starts: the tick at which each iteration began.
        iterations: those that count.
    """
    born = {each.id: bisect_right(starts, each.birth) - 1 for each in alive}
    return {
        each.id: born[each.id]
        for each in alive
        if born[each.id] in iterations and not any(map(each.owned_as, _LASTING))
    }
