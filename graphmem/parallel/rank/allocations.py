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
        category: its category, if it differs from the storage's.
        micro: the number of its micro-batch.
        stream: the CUDA stream in whose memory it lies.
    """

    nbytes: int
    born: RankMoment
    dies: RankMoment | None
    what: str = ""
    storage: Storage | None = None
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
        size = nbytes(storage)
        if size:
            yield from _allocations_of_storage(rank, lifetimes, storage, size)


def _allocations_of_storage(
    rank: Rank, lifetimes: Lifetimes, storage: Storage, size: int
) -> Iterator[Allocation]:
    birth = rank.traced.birth[storage.id]
    born_in = rank.traced.phase_at(birth)
    what = name_of(storage)
    walked = rank.traced.phases[born_in].phase in WALKED
    if rank.is_whole or not walked:
        if rank.layout.pipeline > 1 and not rank.holds_model_part(storage):
            return
        death = rank.traced.death.get(storage.id)
        dies = None if death is None else rank.first_moment(death)
        yield Allocation(size, rank.first_moment(birth), dies, what, storage)
    elif _is_kept_workspace(storage):
        born = rank.first_turn(storage) or rank.first_of_phase(born_in)
        if born is not None:
            yield Allocation(size, born, None, what, storage)
    else:
        for chunk in rank.mine:
            for micro in range(rank.layout.micro_batches):
                lifetime = lifetimes.of(storage, chunk, micro)
                if lifetime is not None:
                    yield Allocation(size, *lifetime, what, storage, micro=micro)


def name_of(storage: Storage) -> str:
    """The name of what a storage is, such as a parameter, else that of its first named owner."""
    named = [owner for owner in storage.owners if owner.name]
    first = next((owner for owner in named if owner.kind in _IDENTITIES), next(iter(named), None))
    return "" if first is None else first.name


_IDENTITIES = frozenset(
    {OwnerKind.PARAMETER, OwnerKind.BUFFER, OwnerKind.GRADIENT, OwnerKind.OPTIMIZER_STATE}
)


def _is_kept_workspace(storage: Storage) -> bool:
    return storage.owned_as(OwnerKind.WORKSPACE) is not None and storage.death is None
