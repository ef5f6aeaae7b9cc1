"""The exact result of an analysis at a formula's moment, by roles of storages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

from graphmem.annotations import KERNEL_MEMORY
from graphmem.formulas.blocks import ModelBlocks
from graphmem.formulas.estimate import FormulaMoment
from graphmem.formulas.messages import NoPhaseError
from graphmem.formulas.roles import ROUNDING, Role, Roles
from graphmem.graph import Category, OwnerKind, Phase, PhaseName, Storage
from graphmem.parallel import Layout, Sharding
from graphmem.report.categories import COMMUNICATION

if TYPE_CHECKING:
    from graphmem.analysis import Analysis
    from graphmem.simulate import Timeline

EVERY_LINEAR_LAYER = "every linear layer"
_STATES = (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE)


@dataclass(frozen=True)
class Exact:
    """Bytes at one moment; `by_role` has requested bytes and, as a separate role, rounding.

    Attributes:
        allocated: the bytes of the allocator's blocks, which is the sum of `by_role`.
        by_role: the same bytes by role.
    """

    allocated: int
    by_role: Mapping[Role, int]


@dataclass(frozen=True)
class Traced:
    """The exact result of a traced step, at every moment.

    Attributes:
        analysis: the step's analysis.
        blocks: the model's blocks.
    """

    analysis: Analysis
    blocks: ModelBlocks

    @cached_property
    def moments(self) -> Mapping[FormulaMoment, Exact]:
        """The exact result at each moment.

        Raises:
            InputError: the step has no backward pass.
        """
        timeline = self.analysis.timeline
        forward, backward = map(self._last, (PhaseName.FORWARD, PhaseName.BACKWARD))
        before, ended = timeline.at(forward.start - 1), timeline.at(backward.end)
        peak, _ = timeline.peak()
        states = [
            storage
            for storage in timeline.alive_at(ended)
            if storage.category_at(ended.tick) in _STATES
        ]
        at = {
            FormulaMoment.STEADY: (timeline.alive_at(before), before.tick),
            FormulaMoment.FORWARD: (self._made_in(forward), forward.end),
            FormulaMoment.STATES: (states, ended.tick),
            FormulaMoment.PEAK: (timeline.alive_at(peak), peak.tick),
        }
        return {
            moment: _exact(storages, tick, timeline, self._roles)
            for moment, (storages, tick) in at.items()
        }

    def on_one_of(self, gpus: int, sharding: Sharding) -> Exact:
        """The most model states that one of several data-parallel ranks holds.

        The step is split as by `graphmem plan`, with the buffers that this takes.

        Raises:
            InputError: the step cannot be split this way.
        """
        from graphmem.parallel.planner import Planner

        graph, runtime = self.analysis.graph, self.analysis.step.runtime
        programs = self.analysis.annotations.of(KERNEL_MEMORY).programs
        layout = Layout(data=gpus, sharding=sharding)
        most = Planner(graph, programs, runtime).plan(layout)[0].timeline.most
        categories = (*_STATES, COMMUNICATION)
        by_role = {Role(category): most.get(category, 0) for category in categories}
        return Exact(sum(by_role.values()), by_role)

    def under_tensor_parallelism(self, ranks: int) -> tuple[int, int]:
        """Bytes of the blocks' activations that tensor parallelism divides, and of the others.

        Decided by the dimensions of the traced tensors (graphmem/parallel/axes/dimensions.py).

        Raises:
            InputError: the step cannot be split over this many ranks.
        """
        from graphmem.parallel.axes.dimensions import find_dimensions
        from graphmem.parallel.sharding.shard_sizes import ShardSizes

        forward = self._last(PhaseName.FORWARD)
        graph = self.analysis.graph
        shares = ShardSizes(graph, find_dimensions(graph), Layout(tensor=ranks))
        divided = whole = 0
        for storage in self._made_in(forward):
            if not self._roles.role(storage, forward.end).in_block:
                continue
            if shares.nbytes(storage) < storage.nbytes:
                divided += storage.nbytes
            else:
                whole += storage.nbytes
        return divided, whole

    def linear_layers(self) -> dict[str, tuple[Fraction, Fraction, int]]:
        """Bytes that the blocks' linear layers allocate in the last forward pass and leave alive.

        By the layer's name within a block, then for all layers: average bytes per block, bytes of
        weights that autocast copies per block, bytes of all blocks.
        """
        graph, count = self.analysis.graph, len(self.blocks.paths)
        found = defaultdict[str, int](int)
        weights = defaultdict[str, int](int)
        for storage in self._made_in(self._last(PhaseName.FORWARD)):
            op = None if storage.owned_as(OwnerKind.WORKSPACE) else graph.op_of(storage)
            within = self.blocks.name_within(op.module) if op is not None else None
            if not within or op is None or not graph.modules[op.module].endswith("Linear"):
                continue
            copied = storage.nbytes if storage.owned_as(OwnerKind.AUTOCAST_CACHE) else 0
            for name in (within, EVERY_LINEAR_LAYER):
                found[name] += storage.nbytes
                weights[name] += copied
        names = sorted(found, key=EVERY_LINEAR_LAYER.__eq__)  # as found, the sum last
        return {
            name: (Fraction(found[name], count), Fraction(weights[name], count), found[name])
            for name in names
        }

    @cached_property
    def _roles(self) -> Roles:
        return Roles.of(self.analysis.graph, self.analysis.annotations, self.blocks)

    def _made_in(self, phase: Phase) -> list[Storage]:
        """The storages that a phase allocates and leaves alive."""
        timeline = self.analysis.timeline
        held = {storage.id for storage in timeline.alive_at(timeline.at(phase.start - 1))}
        alive = timeline.alive_at(timeline.at(phase.end))
        return [storage for storage in alive if storage.id not in held]

    def _last(self, name: PhaseName) -> Phase:
        found = [phase for phase in self.analysis.graph.phases if phase.name is name]
        if not found:
            raise NoPhaseError(name)
        return found[-1]


def _exact(storages: list[Storage], tick: int, timeline: Timeline, roles: Roles) -> Exact:
    by_role = roles.bytes_by_role(storages, tick)
    allocated = sum(timeline.block_bytes[storage.id] for storage in storages)
    return Exact(allocated, by_role | {Role(ROUNDING): allocated - sum(by_role.values())})
