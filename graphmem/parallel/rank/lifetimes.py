"""When a storage of the trace is born on a rank, and when it dies there.

Clauses:
  (1) with one stage and one micro-batch every storage is born and dies at its own events: the trace
      itself;
  (2) micro-batches repeat the forward and backward passes. Gradients accumulate: a later
      micro-batch's gradient dies when it has been added (AccumulateGrad). Storages that live until
      the next iteration's forward pass, such as a loop's variables, live until the next
      micro-batch's;
  (3) a stage has the storages that its operations allocate, read or save. Those that another stage
      made arrive when the stage's pass begins. A variable of the loop over the stages is released
      when the stage's pass ends and its result has been sent; a tensor that autograd saved for one
      of the stage's nodes stays until that node has run.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from graphmem.graph import Owner, OwnerKind, PhaseName, Storage
from graphmem.parallel.rank.rank import WALKED, Rank, RankMoment

Lifetime = tuple[RankMoment, RankMoment | None]
"""Birth and death; the death is None if it outlives the trace."""


class Lifetimes:
    """Lifetimes on one rank."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._traced = rank.traced

    def of(self, storage: Storage, chunk: int, micro: int) -> Lifetime | None:
        """Lifetime of a storage in one chunk and micro-batch; None if it never exists there."""
        if self._rank.layout.pipeline * self._rank.layout.interleave == 1:
            return self._whole_lifetime(storage, micro)
        return self._lifetime_on_stage(storage, chunk, micro)

    def _whole_lifetime(self, storage: Storage, micro: int) -> Lifetime:
        """Clause (2)."""
        traced = self._traced
        event = traced.birth[storage.id]
        born_in = traced.phase_at(event)
        born = self._rank.moment(born_in, 0, micro, event)
        if micro == self._rank.layout.micro_batches - 1 and not storage.owned_as(
            OwnerKind.GRADIENT
        ):
            return born, self._last_death(storage, micro)
        added = self._added(storage, micro)
        if added is not None:
            return born, added
        return born, self._last_death(storage, micro)

    def _added(self, storage: Storage, micro: int) -> RankMoment | None:
        """When a gradient of a later micro-batch has been added to the first one's."""
        if storage.owned_as(OwnerKind.GRADIENT) is None or not micro:
            return None
        event = self._rank.handed_over(storage)
        return self._rank.moment(self._traced.phase_at(event), 0, micro, event - 0.5)

    def _last_death(self, storage: Storage, micro: int) -> RankMoment | None:
        traced = self._traced
        born_in = traced.phases[traced.phase_at(traced.birth[storage.id])]
        death = traced.death.get(storage.id)
        is_last = micro == self._rank.layout.micro_batches - 1
        index = None if death is None else traced.phase_at(death)
        dies_in = None if index is None else traced.phases[index]
        forward = traced.by_phase[born_in.step, PhaseName.FORWARD]
        event: float = traced.phases[forward].start
        if dies_in is not None and index is not None and death is not None:
            if dies_in.step == born_in.step and dies_in.phase in WALKED:
                return self._rank.moment(index, 0, micro, death)
            if is_last or storage.owned_as(OwnerKind.GRADIENT):
                return self._rank.first_moment(death)
            if dies_in.phase is PhaseName.FORWARD:
                event = traced.same_place(death, index, forward)
        elif is_last or storage.owned_as(OwnerKind.GRADIENT):
            return None
        return self._rank.moment(forward, 0, micro + 1, event)

    def _lifetime_on_stage(self, storage: Storage, chunk: int, micro: int) -> Lifetime | None:
        """Clause (3)."""
        traced = self._traced
        event = traced.birth[storage.id]
        born_in = traced.phase_at(event)
        is_maker = storage.op is not None and self._rank.chunk_of_op[storage.op] == chunk
        readers = self._rank.readers.get(storage.id, ())
        read_in = sorted({index for index, reader in readers if reader == chunk})
        arrives_in = next((index for index in read_in if index >= born_in), None)
        if is_maker and not (storage.owned_as(OwnerKind.INPUT) and not read_in):
            born = self._rank.moment(born_in, chunk, micro, event)
        elif arrives_in is not None:
            born = self._rank.moment(
                arrives_in, chunk, micro, self._rank.part(arrives_in, chunk)[0] - 0.25
            )
        else:
            return None
        if storage.owned_as(OwnerKind.GRADIENT):
            added = self._added_on_stage(storage, chunk, micro)
            return born, added if micro else self._death_of_gradient(storage)
        ends = [self._released(owner, chunk, micro) for owner in storage.owners]
        return born, max([born, *(end for end in ends if end is not None)])

    def _death_of_gradient(self, storage: Storage) -> RankMoment | None:
        death = self._traced.death.get(storage.id)
        return None if death is None else self._rank.first_moment(death)

    def _added_on_stage(self, storage: Storage, chunk: int, micro: int) -> RankMoment:
        event = self._rank.handed_over(storage)
        return self._rank.moment(self._traced.phase_at(event), chunk, micro, event - 0.5)

    def _released(self, owner: Owner, chunk: int, micro: int) -> RankMoment | None:
        """When an owner releases a storage in a chunk; None if it never holds it there."""
        traced = self._traced
        end = len(traced.events) if owner.end is None else self._rank.event_at(owner.end)
        if owner.kind is OwnerKind.SAVED_TENSOR:
            if self._saver.get(id(owner), chunk) != chunk:
                return None
            index = traced.phase_at(end)
            if traced.phases[index].phase in WALKED:
                return self._rank.moment(index, chunk, micro, end)
        start = self._rank.event_at(owner.start)
        index = traced.phase_at(min(start, len(traced.events) - 1))
        if traced.phases[index].phase not in WALKED:
            return None
        first, last = self._rank.part(index, chunk)
        if start >= last or end <= first:
            return None
        return self._rank.moment(index, chunk, micro, min(end, last - 0.1))

    @cached_property
    def _saver(self) -> Mapping[int, int]:
        """By identity of an owner, the chunk whose autograd node saved the tensor."""
        return {
            id(saved.owner): self._rank.chunk_of_op[node.op]
            for node in self._rank.graph.autograd_nodes
            for saved in node.saved
            if saved.owner is not None and node.op is not None
        }
