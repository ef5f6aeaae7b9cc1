"""Compute what each rank of a layout holds, from one trace of one device's step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec

from graphmem.graph import Op, OwnerKind, StepGraph, Storage
from graphmem.kernel_program import Program
from graphmem.layer_ranges import no_module, outermost
from graphmem.parallel.axes.dimensions import Dimensions, find_dimensions
from graphmem.parallel.axes.experts import parameter_of
from graphmem.parallel.layout import Layout, check_degrees
from graphmem.parallel.messages import NoExpertsError
from graphmem.parallel.rank.allocations import allocations_of
from graphmem.parallel.rank.blocks import Blocks, find_blocks
from graphmem.parallel.rank.phases import TracedPhases
from graphmem.parallel.rank.rank import Rank
from graphmem.parallel.rank.schedule import in_flight
from graphmem.parallel.rank.stages import Stages, chunks_of, divide
from graphmem.parallel.rank.timeline import RankTimeline, replay
from graphmem.parallel.schema import Traffic
from graphmem.parallel.sharding.collectives import buffers
from graphmem.parallel.sharding.data_parallel import DataParallel, HeldByRank, Host
from graphmem.parallel.sharding.own_kernels import has_own_kernels_under, own_programs
from graphmem.parallel.sharding.shard_sizes import ShardSizes
from graphmem.parallel.sharding.traffic import traffic_of
from graphmem.runtime import Runtime

Progress = Callable[[str], None]


@dataclass(frozen=True)
class RankPlan:
    """The memory of one pipeline rank; its peers in other dimensions hold as much or less.

    Attributes:
        rank: its number in the pipeline.
        blocks: how many blocks it has.
        in_flight: the most micro-batches that wait for their backward pass.
        timeline: bytes over time.
        phase, step: when the peak occurs.
        host: bytes on the host.
        padding: unused bytes on all ranks together.
        traffic: the data it sends in one step.
    """

    rank: int
    blocks: int
    in_flight: int
    timeline: RankTimeline
    phase: str
    step: int
    host: Host
    padding: int
    traffic: tuple[Traffic, ...]


class Planner:
    """Plans layouts from one trace.

    Args:
        graph: the trace of one data-parallel rank's step, unsplit.
        programs: the allocations of kernels.
        runtime: the card, and the allocator's settings.
        blocks: the list of modules that a pipeline divides; None to detect it.
        wrap: patterns of the modules that FSDP wraps; the blocks if empty.

    Raises:
        InputError: there is no such list, or no such module.
    """

    def __init__(
        self,
        graph: StepGraph,
        programs: Mapping[int, Program],
        runtime: Runtime,
        blocks: str | None = None,
        wrap: Sequence[str] = (),
    ) -> None:
        self.graph = graph = _of_called_models(graph)
        self.runtime = runtime
        self.traced = TracedPhases(graph, programs)
        self.blocks: Blocks = find_blocks(graph, blocks)
        self.units = frozenset(_wrapped(graph, wrap)) or frozenset(self.blocks.names)

    @cached_property
    def dimensions(self) -> Dimensions:
        """The axes of the trace."""
        return find_dimensions(self.graph)

    @cached_property
    def block_bytes(self) -> list[int]:
        """Bytes of parameters of each block; at the ends, those before and after the blocks."""
        found = [0] * (self.blocks.count + 2)
        first_read: dict[int, int] = {}
        for index, storages in self.dimensions.reads.items():
            for number in storages:
                first_read.setdefault(number, self.blocks.of_op[index])
        for storage in self.graph.storages:
            if storage.owned_as(OwnerKind.PARAMETER):
                found[first_read.get(storage.id, -1) + 1] += storage.nbytes
        return found

    def stages(self, layout: Layout) -> Stages:
        """The blocks that each stage of a layout holds."""
        return divide(self.blocks, self.block_bytes, layout)

    def plan(self, layout: Layout, progress: Progress = lambda message: None) -> list[RankPlan]:
        """Compute what each pipeline rank holds under a layout, by replaying the allocator.

        Raises:
            InputError: the layout is impossible; the hint names the nearest possible one.
        """
        check_degrees(layout, layout.ranks)
        self.check_experts(layout)
        stages = self.stages(layout)
        plans = []
        for number in range(layout.pipeline):
            progress(f"simulating stage {number + 1} of {layout.pipeline}")
            plans.append(self._plan_rank(layout, stages, number))
        return plans

    def check_experts(self, layout: Layout) -> None:
        """Check that the model has experts for expert parallelism to split, or to name in a note.

        Raises:
            InputError: the model has nothing that looks like experts.
        """
        if layout.expert > 1 and not (self.dimensions.experts or self.dimensions.whole_experts):
            raise NoExpertsError(layout.expert)

    def hold(self, layout: Layout, stages: Stages, number: int) -> tuple[Rank, HeldByRank]:
        """Compute a rank's allocations under a layout."""
        has_own_kernels = has_own_kernels_under(layout)
        shares = ShardSizes(self.graph, self.dimensions, layout, has_own_kernels=has_own_kernels)
        traced = self._own_trace(layout, stages, number, shares) if has_own_kernels else self.traced
        rank = Rank(traced, self.dimensions, layout, self.blocks, stages, number, self.units)
        allocations = [
            *allocations_of(rank, shares.nbytes),
            *buffers(rank, self.dimensions, shares),
        ]
        shapes = self._shapes(shares)
        return rank, DataParallel(rank, allocations, shapes).apply()

    def _own_trace(
        self, layout: Layout, stages: Stages, number: int, shares: ShardSizes
    ) -> TracedPhases:
        """The trace with the scratch memory of a rank's own kernels."""
        chunk_of_op = stages.of_op(self.blocks)
        mine = chunks_of(layout, number)

        def runs(op: Op) -> bool:
            return chunk_of_op[op.index] in mine

        programs = own_programs(self.graph, self.dimensions, shares, runs, self.runtime)
        return TracedPhases(self.graph, programs)

    def _plan_rank(self, layout: Layout, stages: Stages, number: int) -> RankPlan:
        rank, held = self.hold(layout, stages, number)
        timeline = replay(rank, held.allocations, self.runtime.new_allocator(bounded=False))
        traced = rank.traced.phases[rank.slots[timeline.at[0]].traced]
        return RankPlan(
            rank=number,
            blocks=sum(stages.sizes[number :: layout.pipeline]),
            in_flight=in_flight(layout, number),
            timeline=timeline,
            phase=traced.phase,
            step=traced.step,
            host=held.host,
            padding=held.padding,
            traffic=tuple(traffic_of(rank, ShardSizes(self.graph, self.dimensions, layout))),
        )

    def _shapes(self, shares: ShardSizes) -> dict[str, tuple[int, ...]]:
        """The shapes of parameters after tensor parallelism."""
        found = {}
        for storage in self.graph.storages:
            if storage.owned_as(OwnerKind.PARAMETER):
                name = parameter_of(storage)
                assert name is not None
                found[name] = shares.shape(storage)
        return found


def _of_called_models(graph: StepGraph) -> StepGraph:
    """A trace without other models' parameters, such as an average of the weights.

    Nothing shards or gathers these: they are tensors that follow the parameters they are made of.
    """
    owned = (storage.owned_as(OwnerKind.GRADIENT) for storage in graph.storages)
    trained = {each.name.removesuffix(".grad") for each in owned if each is not None}
    known = graph.parameters.keys() | trained

    def seen(storage: Storage) -> Storage:
        owners = [
            each
            for each in storage.owners
            if each.kind is not OwnerKind.PARAMETER or each.name in known
        ]
        same = len(owners) == len(storage.owners)
        return storage if same else msgspec.structs.replace(storage, owners=owners)

    return replace(graph, storages=[seen(storage) for storage in graph.storages])


def _wrapped(graph: StepGraph, patterns: Sequence[str]) -> Iterator[str]:
    """The outermost modules that each pattern matches, as `--checkpoint` has them."""
    names = sorted(graph.modules, key=lambda name: name.count("."))
    for pattern in patterns:
        found = outermost(names, pattern)
        if not found:
            raise no_module(pattern, (name for name in graph.modules if name and "." not in name))
        yield from found
