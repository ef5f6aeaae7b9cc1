"""`fully_shard`: sharded parameters, gradients and optimizer state, gathered unit by unit.

The units are the wrapped modules (by default the model's blocks) and the root, which has everything
else. Sources, of 2.13: torch/distributed/fsdp/_fully_shard/_fsdp_param.py, _fsdp_param_group.py,
_fsdp_collectives.py, _fsdp_state.py.

Clauses:
  (1) a parameter is cut along its first dimension into `ceil(d0 / ranks)` rows; every rank's share
      is padded to that (`padded_sharded_param_size`);
  (2) gathering a unit takes one flat buffer for all its shares, before it a cast copy of the own
      ones under a `MixedPrecisionPolicy`, or a copy of each that the host has under a
      `CPUOffloadPolicy` (`all_gather_inputs`), then one tensor for each parameter
      (`foreach_all_gather`, `foreach_all_gather_copy_out`). In the forward pass the flat buffer
      stays until the next unit has been copied out (`AllGatherState`; `wait_for_unshard` holds it
      in a local variable until it returns), the last one until the root's forward pass ends; in the
      backward pass it is freed at once, and the next unit's is allocated before this unit's
      gradients are computed (`_backward_prefetch`), the last block's when the gradient of the
      root's output is known, so before that of a loss within the model;
  (3) after its forward pass a unit's gathered parameters are freed, with `reshard_after_forward`;
      those of the root stay (`fully_shard`: "False for the root"); after the unit's backward pass
      they are always freed;
  (4) when a unit's gradients are complete, before the next unit's parameters are there, the
      previous unit's buffer is freed, they are copied into a flat buffer and freed, and the share
      is received (`foreach_reduce`, a variable of which holds the last gradient until it returns);
      the buffer stays until the next unit's turn, the last one until the backward pass ends;
  (5) a unit's share of gradients is one storage, and lives as long as the gradients would; a later
      micro-batch's share is added to it and freed;
  (6) flat buffers to gather are of one stream, shares of gradients of another, and everything else
      of the main one (`FSDPCommContext.get_all_gather_streams`, `foreach_reduce`): a block that is
      freed serves only its own stream;
  (7) a unit whose inputs need no gradient, such as the first block after frozen layers or of a
      model without an embedding, has no hook behind it: it is reduced when the backward pass ends,
      after the root (`_root_post_backward_final_callback`, in the order of `all_states`).

DeepSpeed's ZeRO-3 gathers smaller units, within its own limits (`stage3_prefetch_bucket_size`,
`stage3_max_live_parameters`); it is modelled by the same clauses, and the report says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from graphmem.graph import Category, PhaseName
from graphmem.parallel.layout import Layout, Precision
from graphmem.parallel.rank.allocations import Allocation
from graphmem.parallel.rank.rank import Rank, RankMoment
from graphmem.parallel.sharding.parameters import FP32_BYTES, ParameterOnRank
from graphmem.report.categories import COMMUNICATION

ROOT = ""
GATHER_STREAM, REDUCE_STREAM = 1, 2
"""Any two that are not the main stream, 0 (clause 6)."""
ENDS = 0.9
"""How long before the event that follows it a unit ends: after its own last, before the next unit
begins, half an event before its first."""


@dataclass
class Unit:
    """Parameters gathered together: a wrapped module without nested ones, or the root."""

    name: str
    parameters: list[ParameterOnRank] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Its name in a sentence."""
        return self.name or "the root"

    def gathered(self) -> int:
        """Bytes of the flat buffer, and of the gathered parameters."""
        return sum(each.ranks * share_bytes(each) for each in self.parameters)

    def trained(self) -> list[ParameterOnRank]:
        """The parameters that get gradients."""
        return [each for each in self.parameters if each.gradients]


def share_rows(shape: tuple[int, ...], ranks: int) -> int:
    """Elements of a padded share (clause 1)."""
    rows = shape[0] if shape else 1
    inner = 1
    for size in shape[1:]:
        inner *= size
    return -(-rows // ranks) * inner


def share_bytes(parameter: ParameterOnRank) -> int:
    """Bytes of a padded share when it is gathered."""
    return share_rows(parameter.shape, parameter.ranks) * parameter.element_bytes


def padding(parameters: Iterable[ParameterOnRank], layout: Layout) -> int:
    """Bytes of padding in the shares of parameters and gradients, on all ranks."""
    found = 0
    for each in parameters:
        kept = FP32_BYTES if layout.precision is Precision.BF16_MASTER else each.element_bytes
        filled = share_rows(each.shape, each.ranks) * each.ranks - each.numel
        found += filled * kept * (2 if each.gradients else 1)
    return found


def shard_fully(
    rank: Rank, allocations: Iterable[Allocation], parameters: Mapping[str, ParameterOnRank]
) -> list[Allocation]:
    """Apply `fully_shard` to a rank's allocations.

    Args:
        rank: the rank that allocates.
        allocations: the unsharded ones; those of parameters and gradients are modified.
        parameters: the rank's parameters.
    """
    return _FullySharded(rank, list(allocations), parameters).run()


class _FullySharded:
    def __init__(
        self, rank: Rank, allocations: list[Allocation], parameters: Mapping[str, ParameterOnRank]
    ) -> None:
        self._rank = rank
        self._pieces = allocations
        self._units = self._find_units(parameters)
        self._wide = rank.layout.precision is Precision.BF16_MASTER

    def _find_units(self, parameters: Mapping[str, ParameterOnRank]) -> list[Unit]:
        units: dict[str, Unit] = {}
        for each in parameters.values():
            name = self._rank.unit_of(each.name)
            units.setdefault(name, Unit(name)).parameters.append(each)
        return list(units.values())

    def run(self) -> list[Allocation]:
        for i, slot in enumerate(self._rank.slots):
            phase = self._rank.traced.phases[slot.traced].phase
            if phase is PhaseName.FORWARD:
                self._pieces += self._forward(i)
            elif phase is PhaseName.BACKWARD:
                self._pieces += self._backward(i)
        for unit in self._units:
            for each in unit.parameters:
                each.allocation.nbytes = share_bytes(each) * (2 if self._wide else 1)
        if self._wide:  # the share is the master copy
            masters = {id(each.allocation) for unit in self._units for each in unit.parameters}
            self._pieces = [
                allocation
                for allocation in self._pieces
                if id(allocation) in masters or not self._is_master(allocation)
            ]
        return self._pieces

    def _is_master(self, allocation: Allocation) -> bool:
        return allocation.storage is None and allocation.category == Category.OPTIMIZER_STATE

    # Forward ------------------------------------------------------------------------------------

    def _spans(self, slot: int) -> list[tuple[Unit, RankMoment, RankMoment]]:
        """The units that run in a slot, in order, each with its begin and end."""
        found = []
        for unit in self._units:
            is_root = unit.name == ROOT
            span = self._rank.model_span(slot) if is_root else self._rank.span(slot, unit.name)
            if span is not None:
                found.append((unit, (slot, span[0] - 0.5), (slot, span[1] - ENDS)))
        return sorted(found, key=lambda item: (item[1], item[0].name != ROOT))

    def _forward(self, slot: int) -> Iterator[Allocation]:
        spans = self._spans(slot)
        root_ends = slot, self._rank.model_span(slot)[1] - ENDS
        for i, (unit, begins, ends) in enumerate(spans):
            is_last = i + 1 == len(spans)
            freed = root_ends if is_last else _later(spans[i + 1][1], 0.05)
            yield from self._gathered(unit, begins, freed)
            yield from _unsharded(unit, begins, self._resharded(unit, slot, ends))

    def _resharded(self, unit: Unit, slot: int, ends: RankMoment) -> RankMoment:
        if self._rank.layout.reshard_after_forward and unit.name != ROOT:
            return ends
        backward = self._rank.backward_of(slot)
        if backward is None:
            return ends
        span = self._rank.span(backward, unit.name)
        return ends if span is None else (backward, span[1] - ENDS)

    def _stays(self, unit: Unit, slot: int) -> bool:
        """Whether a unit is still gathered when its backward pass begins."""
        forward = self._rank.forward_of(slot)
        if forward is None or self._rank.span(forward, unit.name) is None:
            return False
        return unit.name == ROOT or not self._rank.layout.reshard_after_forward

    def _gathered(self, unit: Unit, born: RankMoment, dies: RankMoment) -> Iterator[Allocation]:
        """The flat buffer in which a unit's shards are gathered, and copies of them (2)."""
        whole, what = unit.gathered(), f"all-gather buffer of {unit.title}"
        shares = [share_bytes(each) for each in unit.parameters]
        if "parameters" not in self._rank.layout.offload:
            shares = [sum(shares)] if self._wide else []
        for i, share in enumerate(shares):
            freed = _later(born, 0.002 - i * 1e-6)  # a list frees its items from the end
            yield Allocation(share, born, freed, what, category=COMMUNICATION, stream=GATHER_STREAM)
        born = _later(born, 0.001) if shares else born
        yield Allocation(whole, born, dies, what, category=COMMUNICATION, stream=GATHER_STREAM)

    # Backward -----------------------------------------------------------------------------------

    def _backward(self, slot: int) -> Iterator[Allocation]:
        spans = self._one_by_one(slot)
        for i, (unit, begins, ends) in enumerate(spans):
            if not self._stays(unit, slot):
                asked = _later(spans[i - 1][1], 0.1) if i and spans[i - 1][1] < begins else begins
                yield from self._gathered(unit, asked, _later(begins, 0.05))
                yield from _unsharded(unit, begins, ends)
        spans.sort(key=lambda item: item[2])
        root_ends = max((end for _, _, end in spans), default=(slot, 0.0))
        for i, (unit, _, ends) in enumerate(spans):
            is_last = i + 1 == len(spans)
            freed = _later(root_ends, 0.06) if is_last else _later(spans[i + 1][2], 0.01)
            yield from self._reduced(unit, ends, freed, slot)

    def _one_by_one(self, slot: int) -> list[tuple[Unit, RankMoment, RankMoment]]:
        """The units of a backward pass; those that end with it end after the root (clause 7)."""
        spans = self._spans(slot)
        end = max((ends for _, _, ends in spans), default=(slot, 0.0))
        lasts = [unit.name for unit, _, ends in spans if ends == end]
        places = {name: i for i, name in enumerate(sorted(lasts, key=lambda name: name != ROOT))}
        return [
            (unit, begins, _later(ends, 0.1 * places.get(unit.name, 0)))
            for unit, begins, ends in spans
        ]

    def _reduced(
        self, unit: Unit, ends: RankMoment, buffer_ends: RankMoment, slot: int
    ) -> Iterator[Allocation]:
        """Clauses (4) and (5)."""
        trained = unit.trained()
        if not trained:
            return
        element_factor = 2 if self._wide else 1
        share = sum(share_bytes(each) for each in trained) * element_factor
        whole = sum(each.ranks * share_bytes(each) for each in trained) * element_factor
        yield Allocation(
            whole,
            _later(ends, 0.02),
            buffer_ends,
            f"reduce-scatter buffer of {unit.title}",
            category=COMMUNICATION,
        )
        lives_until: RankMoment | None = None
        micro = 0
        for each in trained:
            for gradient in each.gradients:
                if gradient.born[0] == slot:
                    micro = gradient.micro
                    if not micro:
                        lives_until = gradient.dies
                    freed = 0.05 if each is trained[-1] else 0.03
                    gradient.dies = max(_later(gradient.born, 0.01), _later(ends, freed))
        born = _later(ends, 0.04)
        yield Allocation(
            share,
            born,
            lives_until if not micro else _later(born, 0.01),
            f"gradients of {unit.title}",
            category=Category.GRADIENT,
            stream=REDUCE_STREAM,
        )


def _later(moment: RankMoment, by: float) -> RankMoment:
    return moment[0], moment[1] + by


def _unsharded(unit: Unit, begins: RankMoment, dies: RankMoment) -> Iterator[Allocation]:
    """The gathered parameters of a unit that is about to run."""
    for each in unit.parameters:
        nbytes, born = each.ranks * share_bytes(each), _later(begins, 0.03)
        yield Allocation(nbytes, born, dies, each.name, category=Category.PARAMETER)
