"""One pipeline rank: its time slots, what runs in them, and its part of the model.

A *slot* is a phase of the trace (setup, a turn of the schedule, an optimizer step) as this rank
runs it; a *moment* is a slot and an event of the trace in it.

A parameter, its gradient and its optimizer state are on every stage that reads the parameter: tied
weights may be on several.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from graphmem.graph import Op, OwnerKind, PhaseName, StepGraph, Storage
from graphmem.parallel.axes.attention import Part
from graphmem.parallel.axes.dimensions import Dimensions
from graphmem.parallel.axes.experts import parameter_of
from graphmem.parallel.layout import Layout
from graphmem.parallel.rank.blocks import Blocks
from graphmem.parallel.rank.phases import TracedPhases
from graphmem.parallel.rank.schedule import Turn, turns
from graphmem.parallel.rank.stages import Stages, chunks_of

RankMoment = tuple[int, float]
"""A slot of the rank, and an event of the trace in it; fractions are between events."""

WALKED = (PhaseName.FORWARD, PhaseName.BACKWARD)
"""The phases that go through the model, once for each micro-batch."""
_ACCUMULATE = "torch::autograd::AccumulateGrad"


@dataclass(frozen=True)
class Slot:
    """A slice of a rank's time: a phase of the trace, with its turn of the schedule."""

    traced: int
    turn: Turn | None = None


class Rank:
    """One pipeline rank.

    Attributes:
        slots: in chronological order.
        chunk_of_op: the pipeline's chunk of each operation; `mine` are those of this rank.
        is_whole: whether it runs the whole model on the whole batch at once.

    Args:
        traced: the trace.
        dimensions: the trace's axes; they tell which operations read what.
        layout: its pipeline and micro-batches matter here.
        blocks, stages: the model's.
        rank: its number in the pipeline.
        units: names of the modules that FSDP wraps; the blocks if empty.
    """

    def __init__(
        self,
        traced: TracedPhases,
        dimensions: Dimensions,
        layout: Layout,
        blocks: Blocks,
        stages: Stages,
        rank: int,
        units: frozenset[str] = frozenset(),
    ) -> None:
        self.traced = traced
        self.graph: StepGraph = traced.graph
        self.layout = layout
        self.rank = rank
        self._units = units or frozenset(blocks.names)
        self._around: dict[str, list[str]] = {}
        self._reads = dimensions.reads
        self.of_parameter = dimensions.of_parameter
        self._meetings = dimensions.meetings
        self._attentions = dimensions.attentions
        self._exchanges = dimensions.exchanges
        self.experts = dimensions.experts
        self.chunk_of_op = stages.of_op(blocks)
        self.mine = chunks_of(layout, rank)
        self.is_whole = layout.pipeline == layout.micro_batches == 1
        if not self.is_whole:
            traced.check_one_micro_batch()
        self.slots = list(self._make_slots())
        self._slot_of = {(slot.traced, slot.turn): i for i, slot in enumerate(self.slots)}
        self._slots_of: dict[tuple[int, int], list[int]] = {}

    def _make_slots(self) -> Iterator[Slot]:
        for i, each in enumerate(self.traced.phases):
            if self.is_whole or each.phase not in WALKED:
                yield Slot(i)
            elif each.phase is PhaseName.FORWARD:
                for turn in turns(self.layout, self.rank):
                    yield Slot(self.traced.by_phase[each.step, turn.phase], turn)

    # Moments ------------------------------------------------------------------------------------

    def first_moment(self, event: int) -> RankMoment:
        """The moment when an event of the trace first happens on this rank."""
        index = self.traced.phase_at(event)
        if (index, None) in self._slot_of:
            return self._slot_of[index, None], event
        return next(i for i, slot in enumerate(self.slots) if slot.traced == index), event

    def first_of_phase(self, index: int) -> RankMoment | None:
        """The moment when the rank's first turn in a phase begins, if it has one."""
        for i, slot in enumerate(self.slots):
            if slot.traced == index:
                assert slot.turn is not None
                return i, self.part(index, self._chunk(slot.turn))[0] - 0.25
        return None

    def first_turn(self, storage: Storage) -> RankMoment | None:
        """The moment when an operation of the rank first makes a storage, if one does."""
        chunk = -1 if storage.op is None else self.chunk_of_op[storage.op]
        if chunk not in self.mine:
            return None
        event = self.traced.birth[storage.id]
        return self.moment(self.traced.phase_at(event), chunk, 0, event)

    def _chunk(self, turn: Turn) -> int:
        return self.mine[turn.chunk]

    def chunks_of(self, op: Op) -> tuple[int, ...]:
        """The rank's chunk that runs an operation of a forward or backward pass, if any."""
        chunk = self.chunk_of_op[op.index]
        return (chunk,) if chunk in self.mine else ()

    def moment(self, index: int, chunk: int, micro: int, event: float) -> RankMoment:
        """The moment of a phase's event, as a micro-batch runs through one of the rank's chunks."""
        return self.slots_of(index, chunk)[micro], event

    def slots_of(self, index: int, chunk: int) -> Sequence[int]:
        """By micro-batch, the slot in which one of the rank's chunks runs a phase."""
        if (index, chunk) not in self._slots_of:
            is_turn = (index, None) not in self._slot_of
            own, phase = self.mine.index(chunk), self.traced.phases[index].phase
            self._slots_of[index, chunk] = [
                self._slot_of[index, Turn(phase, own, micro) if is_turn else None]
                for micro in range(self.layout.micro_batches)
            ]
        return self._slots_of[index, chunk]

    def part(self, index: int, chunk: int) -> tuple[int, int]:
        """A chunk's range of events in a phase: its first, and the one after its last."""
        each = self.traced.phases[index]
        if each.phase not in WALKED or self.layout.pipeline * self.layout.interleave == 1:
            return each.start, each.end
        return self._parts[index, chunk]

    @cached_property
    def _parts(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Each chunk's range: from its first operation to where the next chunk's begins."""
        firsts: dict[int, dict[int, int]] = {}
        for op in self.graph.ops:
            if self.graph.phases[op.phase].name in WALKED:
                chunks = firsts.setdefault(op.phase, {})
                chunks.setdefault(self.chunk_of_op[op.index], self.traced.event_of(op))
        found = {}
        for index, chunks in firsts.items():
            each = self.traced.phases[index]
            order = sorted(chunks, key=chunks.__getitem__)
            starts = [each.start, *(chunks[chunk] for chunk in order[1:])]
            ends = [*starts[1:], each.end]
            found.update(
                {
                    (index, chunk): part
                    for chunk, part in zip(order, zip(starts, ends, strict=True), strict=True)
                }
            )
        return found

    def span(self, slot: int, unit: str) -> tuple[int, int] | None:
        """The range of a slot's events in which a wrapped module runs; the whole slot for the root.

        None if the module does not run in the slot.
        """
        each = self.slots[slot]
        traced = self.traced.phases[each.traced]
        part = traced.start, traced.end
        if each.turn is not None:
            part = self.part(each.traced, self._chunk(each.turn))
        if not unit:
            return part
        found = self._unit_spans.get((each.traced, unit))
        return found if found is not None and part[0] <= found[0] < part[1] else None

    def model_span(self, slot: int) -> tuple[int, int]:
        """The range of a slot's events in which the model runs, without a loss outside of it."""
        part = self.span(slot, "")
        assert part is not None
        start, end = self.traced.models[self.slots[slot].traced]
        return max(part[0], start), min(part[1], end)

    def unit_of(self, name: str) -> str:
        """The innermost wrapped module around a module or parameter; "" for the root."""
        return next(reversed(self._units_around(name)), "")

    def _units_around(self, name: str) -> list[str]:
        """The wrapped modules around a module or parameter, outermost first."""
        if (found := self._around.get(name)) is None:
            ends = [*(i for i, letter in enumerate(name) if letter == "."), len(name)]
            found = [name[:end] for end in ends if name[:end] in self._units]
            self._around[name] = found
        return found

    @cached_property
    def _unit_spans(self) -> dict[tuple[int, str], tuple[int, int]]:
        """By phase and unit, the event of its first operation and of the one after its last.

        Operations outside any module, such as autograd's sums, belong to the unit that ran before.
        """
        firsts: dict[tuple[int, str], int] = {}
        lasts: dict[tuple[int, str], int] = {}
        ops = self.graph.ops
        running: list[str] = []
        for op, following in zip(ops, [*ops[1:], None], strict=True):
            running = self._units_around(op.module) if op.module else running
            if following is None or following.phase != op.phase:
                end = self.traced.phases[op.phase].end
            else:
                end = self.traced.event_of(following)
            for unit in running:
                firsts.setdefault((op.phase, unit), self.traced.event_of(op))
                lasts[op.phase, unit] = end
        return {key: (first, lasts[key]) for key, first in firsts.items()}

    @cached_property
    def units_of_backward(self) -> frozenset[str]:
        """The wrapped modules that run in a backward pass, with the root, which always does."""
        modules = {op.module for op in self.graph.ops if self._is_backward(op.phase)}
        return frozenset(("", *(unit for each in modules for unit in self._units_around(each))))

    def _is_backward(self, index: int) -> bool:
        return self.graph.phases[index].name is PhaseName.BACKWARD

    def end_of(self, slot: int) -> int:
        """The event after the last one of a slot."""
        span = self.span(slot, "")
        assert span is not None
        return span[1]

    def in_last_step(self, slot: int) -> bool:
        """Whether a slot belongs to the last traced step."""
        return self.traced.phases[self.slots[slot].traced].step == self.graph.steps - 1

    def backward_of(self, slot: int) -> int | None:
        """The slot with the backward pass of a forward slot's micro-batch."""
        return self._partner(slot, PhaseName.BACKWARD)

    def forward_of(self, slot: int) -> int | None:
        """The slot with the forward pass of a backward slot's micro-batch."""
        return self._partner(slot, PhaseName.FORWARD)

    def _partner(self, slot: int, phase: PhaseName) -> int | None:
        each = self.slots[slot]
        step = self.traced.phases[each.traced].step
        index = self.traced.by_phase.get((step, phase))
        if index is None:
            return None
        turn = each.turn and Turn(phase, each.turn.chunk, each.turn.micro)
        return self._slot_of.get((index, turn))

    def handed_over(self, gradient: Storage) -> int:
        """The event at which a complete gradient is handed to its parameter."""
        taken = self._taken.get(gradient.id)
        birth = self.traced.birth[gradient.id]
        return birth + 1 if taken is None else self.traced.event_after(taken.tick)

    def taken_by(self, gradient: Storage) -> int:
        """The index of the operation with which it is handed over, or -1."""
        taken = self._taken.get(gradient.id)
        return -1 if taken is None else taken.index

    @cached_property
    def _taken(self) -> Mapping[int, Op]:
        """By gradient, the `AccumulateGrad` that detaches it, or copies it to a new storage."""
        return {
            output.storage: op
            for op in self.graph.ops
            if op.autograd_node == _ACCUMULATE
            for output in op.outputs
            if output.storage is not None
        }

    @cached_property
    def readers(self) -> Mapping[int, list[tuple[int, int]]]:
        """By storage, the phases and chunks whose operations read it."""
        found: dict[int, list[tuple[int, int]]] = {}
        for index, storages in self._reads.items():
            op = self.graph.ops[index]
            for storage in storages:
                found.setdefault(storage, []).append((op.phase, self.chunk_of_op[index]))
        return found

    # Data that it sends -------------------------------------------------------------------------

    def met_storages(self, *, parts: bool) -> list[int]:
        """The storages that one micro-batch sums, gathers or scatters for tensor parallelism.

        Each as often as it does; with `parts`, under sequence parallelism.
        """
        return [
            each.storage
            for each in self._meetings
            if self._is_in_last_step(each.op)
            for _ in range(each.parts if parts else each.sums)
        ]

    def keys_and_values(self) -> list[Part]:
        """The keys and values of the rank's attentions in one forward pass."""
        return [
            part
            for op, parts in self._attentions.items()
            if self._runs_in_last_forward(op)
            for part in parts
        ]

    def exchanged_storages(self) -> list[int]:
        """The storages that one micro-batch sends to the rank's experts and back."""
        last = self.graph.steps - 1
        return [
            storage
            for each in self._exchanges
            if self.graph.phases[self.graph.ops[each.first].phase].step == last
            if self.chunk_of_op[each.first] in self.mine
            for storage in (*each.dispatched, *each.combined)
        ]

    def replicas(self, parameter: str) -> int:
        """How many ranks hold the same part of a parameter; fewer for an expert.

        Megatron-LM's expert-data-parallel group (megatron/core/parallel_state.py).
        """
        layout = self.layout
        return layout.sharding_ranks // (layout.expert if parameter in self.experts else 1)

    def _runs_in_last_forward(self, index: int) -> bool:
        phase = self.graph.phases[self.graph.ops[index].phase]
        return phase.name is PhaseName.FORWARD and self._is_in_last_step(index)

    def _is_in_last_step(self, index: int) -> bool:
        phase = self.graph.phases[self.graph.ops[index].phase]
        return phase.step == self.graph.steps - 1 and self.chunk_of_op[index] in self.mine

    def sent_storages(self) -> list[int]:
        """The storages that the rank sends on for one micro-batch, forward and backward.

        A storage read by several stages is passed from each to the next, like the gradient of a
        residual stream, which autograd sums in place.
        """
        last = self.graph.steps - 1
        sent = []
        for number, readers in self.readers.items():
            made_by = self.graph.op_of(self.graph.storages[number])
            if made_by is None:
                continue
            made_in = self.graph.phases[made_by.phase]
            if made_in.step == last and made_in.name in WALKED:
                home = self.chunk_of_op[made_by.index]
                reached = [chunk for phase, chunk in readers if phase == made_by.phase]
                forward = range(home, max(reached, default=home))
                backward = range(home, min(reached, default=home), -1)
                sent += [number for chunk in self.mine if chunk in forward or chunk in backward]
        return sent

    # Its part of the model ----------------------------------------------------------------------

    def holds_model_part(self, storage: Storage) -> bool:
        """Whether a storage made in setup or by the optimizer is on this rank."""
        name = parameter_of(storage) or self._parameter_of_op(storage)
        if name is not None:
            return self.holds(name)
        owner = storage.owned_as(OwnerKind.BUFFER)
        if owner is not None:
            return any(chunk in self.mine for _, chunk in self.readers.get(storage.id, ()))
        return storage.op is None or self._phase_of(storage) is PhaseName.OPTIMIZER

    def holds(self, parameter: str) -> bool:
        """Whether an operation of this rank reads a parameter."""
        return any(chunk in self.mine for chunk in self._chunks_of_parameter.get(parameter, (0,)))

    def _phase_of(self, storage: Storage) -> PhaseName:
        return self.traced.phases[self.traced.phase_at(self.traced.birth[storage.id])].phase

    @cached_property
    def _chunks_of_parameter(self) -> Mapping[str, set[int]]:
        found: dict[str, set[int]] = {}
        for storage in self.graph.storages:
            owner = storage.owned_as(OwnerKind.PARAMETER)
            if owner is not None:
                readers = self.readers.get(storage.id, ())
                found.setdefault(owner.name, set()).update(chunk for _, chunk in readers)
        return found

    def _parameter_of_op(self, storage: Storage) -> str | None:
        return self.of_parameter.get(storage.id)
