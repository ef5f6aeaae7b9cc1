"""A rank's allocations over the trace, before data-parallel sharding.

For each storage of the trace, the rank allocates its share, once for each micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from graphmem.graph import OwnerKind, Storage
from graphmem.parallel.rank.lifetimes import Lifetimes
from graphmem.parallel.rank.rank import WALKED, Rank, RankMoment


@dataclass(slots=True)
class Allocation:
    """One allocation of a rank.

    Attributes:
        nbytes: requested bytes.
        born, dies: when it lives; `dies` is None if it outlives the trace.
        what: a description; the parameter's name if it belongs to one.
        storage: the storage in the trace; None for allocations outside it, such as buckets.
        kind: parameter, gradient or optimizer state; None for everything else.
        category: its category, if it differs from the storage's.
        micro: the number of its micro-batch.
        stream: the CUDA stream in whose memory it lies.
    """

    nbytes: int
    born: RankMoment
    dies: RankMoment | None
    what: str = ""
    storage: Storage | None = None
    kind: OwnerKind | None = None
    category: str | None = None
    micro: int = 0
    stream: int = 0


def allocations_of(rank: Rank, nbytes: Callable[[Storage], int]) -> Iterator[Allocation]:
    """Yield every allocation, in no particular order.

    Args:
        rank: the rank that allocates.
        nbytes: gives a storage's bytes on this rank; 0 if it has no part of it.
    """
    lifetimes = Lifetimes(rank)
    for storage in rank.traced.storages.values():
        lives = list(_lives_of(rank, lifetimes, storage))
        size = nbytes(storage) if lives else 0
        if size:
            what, kind = name_of(storage), _kind_of(storage)
            for born, dies, micro in lives:
                yield Allocation(size, born, dies, what, storage, kind, micro=micro)


def _lives_of(
    rank: Rank, lifetimes: Lifetimes, storage: Storage
) -> Iterator[tuple[RankMoment, RankMoment | None, int]]:
    """When the rank allocates and frees a storage, and for which micro-batch."""
    birth = rank.traced.birth[storage.id]
    born_in = rank.traced.phase_at(birth)
    if rank.is_whole or rank.traced.phases[born_in].phase not in WALKED:
        if rank.layout.pipeline == 1 or rank.holds_model_part(storage):
            death = rank.traced.death.get(storage.id)
            dies = None if death is None else rank.first_moment(death)
            yield rank.first_moment(birth), dies, 0
    elif _is_kept_workspace(storage):
        born = rank.first_turn(storage) or rank.first_of_phase(born_in)
        if born is not None:
            yield born, None, 0
    else:
        for chunk in rank.mine:
            for micro, (born, dies) in enumerate(lifetimes.of(storage, chunk)):
                yield born, dies, micro


def _kind_of(storage: Storage) -> OwnerKind | None:
    return next((kind for kind in _KINDS if storage.owned_as(kind)), None)


def name_of(storage: Storage) -> str:
    """The name of what a storage is, such as a parameter, else that of its first named owner."""
    named = [owner for owner in storage.owners if owner.name]
    first = next((owner for owner in named if owner.kind in _IDENTITIES), next(iter(named), None))
    return "" if first is None else first.name


_KINDS = (OwnerKind.PARAMETER, OwnerKind.GRADIENT, OwnerKind.OPTIMIZER_STATE)
_IDENTITIES = frozenset({*_KINDS, OwnerKind.BUFFER})


def _is_kept_workspace(storage: Storage) -> bool:
    return storage.owned_as(OwnerKind.WORKSPACE) is not None and storage.death is None
