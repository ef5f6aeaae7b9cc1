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

from collections.abc import Iterator, Mapping
from functools import cached_property

from graphmem.graph import Owner, OwnerKind, PhaseName, Storage
from graphmem.parallel.rank.rank import WALKED, Rank, RankMoment

Lifetime = tuple[RankMoment, RankMoment | None]
"""Birth and death; the death is None if it outlives the trace."""

Place = tuple[int, float]
"""A phase and an event of the trace in it: where each micro-batch has a moment of its own."""


class Lifetimes:
    """Lifetimes on one rank."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._traced = rank.traced

    def of(self, storage: Storage, chunk: int) -> Iterator[Lifetime]:
        """A storage's lifetimes in one chunk, by micro-batch; none if it never exists there."""
        if self._rank.layout.pipeline * self._rank.layout.interleave > 1:
            return self._on_stage(storage, chunk)
        micros = range(self._rank.layout.micro_batches)
        return (self._whole_lifetime(storage, micro) for micro in micros)

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

    def _on_stage(self, storage: Storage, chunk: int) -> Iterator[Lifetime]:
        """Clause (3)."""
        born = self._born_on_stage(storage, chunk)
        if born is None:
            return
        is_gradient = storage.owned_as(OwnerKind.GRADIENT) is not None
        ends = [self._added_on_stage(storage)] if is_gradient else self._released(storage, chunk)
        for micro in range(self._rank.layout.micro_batches):
            start, *dies = (
                (self._rank.slots_of(index, chunk)[micro], event) for index, event in (born, *ends)
            )
            if is_gradient:
                yield start, dies[0] if micro else self._death_of_gradient(storage)
            else:
                yield start, max(start, *dies) if dies else start

    def _born_on_stage(self, storage: Storage, chunk: int) -> Place | None:
        rank = self._rank
        is_maker = storage.op is not None and rank.chunk_of_op[storage.op] == chunk
        readers = rank.readers.get(storage.id, ())
        read_in = [index for index, reader in readers if reader == chunk]
        if not is_maker and not read_in:
            return None
        event = self._traced.birth[storage.id]
        born_in = self._traced.phase_at(event)
        if is_maker and (read_in or not storage.owned_as(OwnerKind.INPUT)):
            return born_in, event
        arrives_in = min((index for index in read_in if index >= born_in), default=None)
        return None if arrives_in is None else (arrives_in, rank.part(arrives_in, chunk)[0] - 0.25)

    def _death_of_gradient(self, storage: Storage) -> RankMoment | None:
        death = self._traced.death.get(storage.id)
        return None if death is None else self._rank.first_moment(death)

    def _added_on_stage(self, storage: Storage) -> Place:
        event = self._rank.handed_over(storage)
        return self._traced.phase_at(event), event - 0.5

    def _released(self, storage: Storage, chunk: int) -> list[Place]:
        """Where a storage's owners release it in a chunk, if they ever hold it there."""
        places = (self._end_of(owner, chunk) for owner in storage.owners)
        return [place for place in places if place is not None]

    def _end_of(self, owner: Owner, chunk: int) -> Place | None:
        traced = self._traced
        end = len(traced.events) if owner.end is None else traced.event_from(owner.end)
        if owner.kind is OwnerKind.SAVED_TENSOR:
            if self._saver.get(id(owner), chunk) != chunk:
                return None
            index = traced.phase_at(end)
            if traced.phases[index].phase in WALKED:
                return index, end
        start = traced.event_from(owner.start)
        index = traced.phase_at(start)
        if traced.phases[index].phase not in WALKED:
            return None
        first, last = self._rank.part(index, chunk)
        return None if start >= last or end <= first else (index, min(end, last - 0.1))

    @cached_property
    def _saver(self) -> Mapping[int, int]:
        """By identity of an owner, the chunk whose autograd node saved the tensor."""
        return {
            id(saved.owner): self._rank.chunk_of_op[node.op]
            for node in self._rank.graph.autograd_nodes
            for saved in node.saved
            if saved.owner is not None and node.op is not None
        }
