"""What one rank allocates in the course of the trace, before data-parallel sharding.

For a storage of the trace that is as many bytes as the rank's share of it, once for each
micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from graphmem.graph import OwnerKind, Storage
from graphmem.parallel.rank.lifetimes import Lifetimes
from graphmem.parallel.rank.rank import WALKED, Moment, Rank


@dataclass(slots=True)
class Allocation:
    """One allocation of a rank.

    Attributes:
        nbytes: requested.
        born, dies: None where it outlives the trace.
        what: for people; the parameter's name for what belongs to one.
        storage: of the trace, or None for what the trace does not have, such as buckets.
        category: where it is not that of the storage.
        micro: which micro-batch.
    """

    nbytes: int
    born: Moment
    dies: Moment | None
    what: str = ""
    storage: Storage | None = None
    category: str | None = None
    micro: int = 0


def allocations_of(rank: Rank, nbytes: Callable[[Storage], int]) -> Iterator[Allocation]:
    """Every allocation, in no order.

    Args:
        rank: whose they are.
        nbytes: of a storage on this rank; 0 where it has none of it.
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
        born = rank.first_of_phase(born_in)
        if born is not None:
            yield Allocation(size, born, None, what, storage)
    else:
        for chunk in rank.mine:
            for micro in range(rank.layout.micro_batches):
                lifetime = lifetimes.of(storage, chunk, micro)
                if lifetime is not None:
                    yield Allocation(size, *lifetime, what, storage, micro=micro)


def name_of(storage: Storage) -> str:
    """What holds a storage, in words."""
    return next((owner.name for owner in storage.owners if owner.name), "")


def _is_kept_workspace(storage: Storage) -> bool:
    return storage.owned_as(OwnerKind.WORKSPACE) is not None and storage.death is None
