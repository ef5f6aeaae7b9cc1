"""A pipeline stage's step as arrays, so that the search gets a layout's peak from a few sums.

An estimate is made once for each way of cutting the model into stages, from the allocations of one
micro-batch in the last traced step. Storages of equal sizes and equal axes form a *group*, whose
bytes are computed once for each layout; the peak is the largest partial sum.

It is simpler than the replay of `planner`: blocks are only rounded to 512 bytes, so reserved bytes
are not modelled; of `micro_batches` only the number in flight counts; FSDP's buffers are three
times the largest unit other than the root; ZeRO-1's shares are even. The search replays the layouts
it shows.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from graphmem.graph import OwnerKind, PhaseName, Storage
from graphmem.parallel.axes.axis import Axis
from graphmem.parallel.axes.dimensions import Dimensions
from graphmem.parallel.layout import Layout, Precision, Sharding
from graphmem.parallel.rank.allocations import Allocation
from graphmem.parallel.rank.rank import WALKED, Rank, RankMoment
from graphmem.parallel.rank.schedule import in_flight
from graphmem.parallel.sharding.data_parallel import REDUCE_BUCKET_ELEMENTS
from graphmem.parallel.sharding.fsdp import ROOT
from graphmem.parallel.sharding.parameters import FP32_BYTES
from graphmem.parallel.sharding.shard_sizes import ShardSizes
from graphmem.parallel.sharding.traffic import gathered_again, ring_all_reduce, ring_gather

Bytes = NDArray[np.int64]
_BLOCK = 512


class Groups:
    """Storages grouped so that all in a group have the same share under every layout.

    Attributes:
        of_storage: the group of each storage, by storage id.
        representatives: one storage of each group.
    """

    def __init__(
        self, dimensions: Dimensions, shares: ShardSizes, storages: Sequence[Storage]
    ) -> None:
        self._names = _atom_names(dimensions)
        self.of_storage: dict[int, int] = {}
        self.representatives: list[Storage] = []
        found: dict[Hashable, int] = {}
        for storage in storages:
            key = (
                storage.nbytes,
                shares.belongs_to_model(storage),
                storage.dtype,
                shares.describe(storage),
                tuple(map(self._named, dimensions.of_storage.get(storage.id, ()))),
            )
            number = found.setdefault(key, len(found))
            if number == len(self.representatives):
                self.representatives.append(storage)
            self.of_storage[storage.id] = number

    def _named(self, axis: Axis) -> Hashable:
        root = axis.root
        if root in self._names:
            return self._names[root]
        below = root.factors or root.parts
        if below:
            return (bool(root.parts), *map(self._named, below))
        whole = root.cut_from or root.drawn_from
        if whole is not None:
            return root.size, whole.size, self._named(whole)
        return root.size

    def nbytes(self, shares: ShardSizes) -> Bytes:
        """The bytes of each group under a layout."""
        return np.array([shares.nbytes(each) for each in self.representatives], dtype=np.int64)


def _atom_names(dimensions: Dimensions) -> dict[Axis, Hashable]:
    """Name atoms so that equal names are divided in the same way."""
    names: dict[Axis, Hashable] = {atom: ("whole", atom.size) for atom in dimensions.whole}
    for column in dimensions.columns:
        sizes = tuple(atom.size for atom in column.atoms)
        for position, atom in enumerate(column.atoms):
            names[atom.root] = (column.pads, sizes, position)
    names |= {axis.root: ("experts", axis.size) for axis in dimensions.expert_axes}
    for what, axis in (("batch", dimensions.batch), ("sequence", dimensions.sequence)):
        if axis is not None:
            names[axis.root] = what
    return names


@dataclass(frozen=True)
class Events:
    """Births and deaths of groups in one step, in order.

    Attributes:
        signs: 1 for a birth, -1 for a death.
        groups: the group of each event.
        before_step: how many events precede the step.
        forward_end: how many events precede the end of the forward pass.
    """

    signs: Bytes
    groups: Bytes
    before_step: int
    forward_end: int

    def held(self, blocks: Bytes) -> tuple[int, int, int]:
        """Bytes held before the step, extra bytes held until backward, and the peak."""
        sums = np.cumsum(self.signs * blocks[self.groups])
        if not len(sums):
            return 0, 0, 0
        stands = int(sums[self.before_step - 1]) if self.before_step else 0
        forward_end = int(sums[self.forward_end - 1]) if self.forward_end else 0
        return stands, forward_end - stands, int(sums.max())


class StageEstimate:
    """The estimate of one stage.

    Args:
        rank: a pipeline rank with one micro-batch.
        groups: the trace's groups.
        allocations: the rank's, before data-parallel sharding.
    """

    def __init__(self, rank: Rank, groups: Groups, allocations: Sequence[Allocation]) -> None:
        self._number, self._in_backward = rank.rank, rank.units_of_backward
        self._groups = groups
        of_kind: dict[OwnerKind | None, list[Allocation]] = {}
        for allocation in allocations:
            of_kind.setdefault(allocation.kind, []).append(allocation)
        parameters = of_kind.get(OwnerKind.PARAMETER, [])
        gradients = [
            allocation
            for allocation in of_kind.get(OwnerKind.GRADIENT, [])
            if rank.in_last_step(allocation.born[0])
        ]
        trained = {rank.of_parameter[p.storage.id] for p in gradients if p.storage is not None}
        self._weights = self._groups_of(parameters)
        self._trained = np.array([p.what in trained for p in parameters], dtype=bool)
        self._experts = np.array([p.what in rank.experts for p in parameters], dtype=bool)
        self._units = [rank.unit_of(p.what) for p in parameters]
        self._states = self._groups_of(
            [p for p in of_kind.get(OwnerKind.OPTIMIZER_STATE, []) if p.dies is None]
        )
        others = of_kind.get(None, [])
        passing = [replace(p, dies=_handed_over(rank, p)) for p in gradients]
        self._events = {
            True: _events(rank, groups, [*others, *gradients], *WALKED),
            False: _events(rank, groups, [*others, *passing], *WALKED),
        }
        self._stepping = _events(rank, groups, others, PhaseName.OPTIMIZER)
        self._met = {
            parts: self._numbers(rank.met_storages(parts=parts)) for parts in (False, True)
        }
        keys = rank.keys_and_values()
        self._keys = self._numbers(part.storage for part in keys)
        self._key_parts = np.array([(part.numel, part.of) for part in keys], np.int64).reshape(
            -1, 2
        )
        self._exchanged = self._numbers(rank.exchanged_storages())
        self._sent = self._numbers(rank.sent_storages())

    def _numbers(self, storages: Iterable[int]) -> Bytes:
        return np.array([self._groups.of_storage[each] for each in storages], dtype=np.int64)

    def _groups_of(self, allocations: Iterable[Allocation]) -> Bytes:
        return self._numbers(p.storage.id for p in allocations if p.storage is not None)

    # Memory -------------------------------------------------------------------------------------

    def peak(self, layout: Layout, nbytes: Bytes) -> int:
        """The most bytes that the stage holds at once."""
        blocks = -(-nbytes // _BLOCK) * _BLOCK
        shared = layout.sharding.shares_gradients and layout.sharding_ranks > 1
        grows = layout.micro_batches == 1 and not shared
        grows = grows and layout.precision is Precision.TRACED and not layout.offload
        _, waits, most = self._events[grows].held(blocks)
        flight = in_flight(layout, self._number)
        states, gradients = self._states_and_gradients(layout, nbytes)
        walking = most + (flight - 1) * max(0, waits) + (0 if grows else gradients)
        steps_stand, _, stepping = self._stepping.held(blocks)
        shares = layout.sharding_ranks if layout.sharding.shares_optimizer else 1
        on_host = "optimizer" in layout.offload
        stepping = steps_stand + (0 if on_host else -(-(stepping - steps_stand) // shares))
        return max(walking, stepping + gradients) + states

    def _states_and_gradients(self, layout: Layout, nbytes: Bytes) -> tuple[int, int]:
        """Bytes that a rank keeps between steps, with its buffers, and bytes of its gradients."""
        weights = nbytes[self._weights]
        ranks = np.where(
            self._experts, layout.sharding_ranks // layout.expert, layout.sharding_ranks
        )
        sharding = layout.sharding
        wide = 2 if layout.precision is Precision.BF16_MASTER else 1
        gathers = sharding.shares_parameters and layout.sharding_ranks > 1
        kept = -(-weights // ranks) * wide if gathers else weights
        each = weights[self._trained] * wide
        shared = -(-each // ranks[self._trained])
        gradients = int((shared if sharding.shares_gradients else each).sum())
        states = int(nbytes[self._states].sum()) * wide
        if wide == 2 and not gathers:
            states += int(each.sum())
        if sharding.shares_optimizer:
            states = -(-states // layout.sharding_ranks)
        total = 0 if "parameters" in layout.offload else int(kept.sum())
        total += 0 if "optimizer" in layout.offload else states
        return total + self._buffers(layout, weights, wide), gradients

    def _buffers(self, layout: Layout, weights: Bytes, wide: int) -> int:
        if layout.sharding_ranks == 1:
            return 0
        bucket = REDUCE_BUCKET_ELEMENTS * (FP32_BYTES // wide)
        if layout.sharding.shares_parameters:
            units: dict[str, int] = {}
            for unit, nbytes in zip(self._units, weights.tolist(), strict=True):
                units[unit] = units.get(unit, 0) + nbytes
            root = units.pop(ROOT, 0)
            bucket *= layout.sharding is Sharding.ZERO_3
            return root + (2 + wide) * max(units.values(), default=root) + bucket
        if layout.sharding is Sharding.ZERO_2:
            return bucket
        return 0 if wide == 2 else int(weights[self._trained].sum())

    # Traffic ------------------------------------------------------------------------------------

    def traffic(self, layout: Layout, nbytes: Bytes) -> int:
        """Bytes that a rank of the stage sends in one step, counted like `traffic`."""
        weights = nbytes[self._weights]
        wide = 2 if layout.precision is Precision.BF16_MASTER else 1
        apart = self._experts & (layout.expert > 1)
        again = gathered_again(self._in_backward, layout)
        times = np.array([1 + (unit in again) for unit in self._units], dtype=np.int64)
        sent = 0
        for these, ways in ((~apart, 1), (apart, layout.expert)):
            gradients = int(weights[self._trained & these].sum()) * wide
            ranks = layout.sharding_ranks // ways
            gathered = int((weights * times)[these].sum())
            sent += traffic_of_weights(layout, gathered, gradients, ranks)
        tokens = int(nbytes[self._exchanged].sum())
        sent += layout.micro_batches * ring_gather(tokens, layout.expert)
        whole = layout.tensor if layout.sequence_parallel else 1
        met = int(nbytes[self._met[layout.sequence_parallel]].sum()) * whole
        ring = ring_gather if layout.sequence_parallel else ring_all_reduce
        sent += layout.micro_batches * ring(met, layout.tensor)
        numel, of = self._key_parts.T
        keys = int((nbytes[self._keys] * numel // of).sum()) * layout.context
        sent += 3 * layout.micro_batches * ring_gather(keys, layout.context)
        return sent + layout.micro_batches * int(nbytes[self._sent].sum())


def traffic_of_weights(layout: Layout, gathered: int, gradients: int, ranks: int) -> int:
    """Bytes that data parallelism sends in one step, among ranks that hold the same weights."""
    if layout.sharding is Sharding.REPLICATED:
        return ring_all_reduce(gradients, ranks)
    times = layout.micro_batches if layout.sharding.shares_parameters else 1
    return times * (ring_gather(gradients, ranks) + ring_gather(gathered, ranks))


def _handed_over(rank: Rank, gradient: Allocation) -> RankMoment:
    assert gradient.storage is not None
    return gradient.born[0], rank.handed_over(gradient.storage) - 0.5


def _events(
    rank: Rank, groups: Groups, allocations: Iterable[Allocation], *phases: PhaseName
) -> Events:
    """The events of the last step's slots of some phases; those before the step come first."""
    slots = [
        i
        for i, slot in enumerate(rank.slots)
        if rank.in_last_step(i) and rank.traced.phases[slot.traced].phase in phases
    ]
    if not slots:
        return Events(np.zeros(0, np.int64), np.zeros(0, np.int64), 0, 0)
    begins, ends = (slots[0], -np.inf), (slots[-1], np.inf)
    found: list[tuple[RankMoment, int, int]] = []
    for allocation in allocations:
        dies = ends if allocation.dies is None else allocation.dies
        if allocation.storage is None or dies < begins or allocation.born > ends:
            continue
        group = groups.of_storage[allocation.storage.id]
        found.append((max(allocation.born, begins), 1, group))
        if dies < ends:
            found.append((dies, -1, group))
    found.sort(key=lambda event: event[0])
    before_step = sum(event[0] == begins for event in found)
    forward = [
        i for i in slots if rank.traced.phases[rank.slots[i].traced].phase is PhaseName.FORWARD
    ]
    forward_end = sum(event[0] <= (forward[-1], np.inf) for event in found) if forward else 0
    return Events(
        np.array([event[1] for event in found], dtype=np.int64),
        np.array([event[2] for event in found], dtype=np.int64),
        before_step,
        forward_end,
    )
