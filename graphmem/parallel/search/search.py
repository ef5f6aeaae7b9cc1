"""Find the layouts of a number of GPUs under which a step fits.

Every way of splitting is estimated (`stage_estimate`), hundreds a second; those shown are then
replayed through the allocator like any other plan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

from graphmem.errors import InputError
from graphmem.parallel.describe import layout_info, outside_allocator
from graphmem.parallel.layout import Layout, Sharding, check_degrees
from graphmem.parallel.planner import Planner, RankPlan
from graphmem.parallel.rank.allocations import allocations_of
from graphmem.parallel.rank.rank import Rank
from graphmem.parallel.schema import CandidateLayout, Search
from graphmem.parallel.search.stage_estimate import Groups, StageEstimate
from graphmem.parallel.sharding.shard_sizes import ShardSizes
from graphmem.version import __version__

Progress = Callable[[str], None]
_NOTE = (
    "the layouts shown were replayed through the allocator, as `graphmem plan` does; the others "
    "were estimated, blocks rounded to 512 bytes"
)


SEARCHED = (Sharding.REPLICATED, Sharding.ZERO_1, Sharding.ZERO_2, Sharding.FSDP)
"""The shardings that a search tries; ZeRO-3 is modelled like FSDP."""


@dataclass(frozen=True)
class Wanted:
    """The layouts that a search may choose from; None means any value.

    Attributes:
        base: the fixed settings: precision, offload, schedule.
        tensor, pipeline, context, expert, data, micro_batches: fixed degrees.
        shardings: those to try.
        sequence_parallel: a fixed value; None tries both.
    """

    base: Layout = field(default_factory=Layout)
    data: int | None = None
    tensor: int | None = None
    pipeline: int | None = None
    context: int | None = None
    expert: int | None = None
    micro_batches: int | None = None
    shardings: tuple[Sharding, ...] = SEARCHED
    sequence_parallel: bool | None = None


@dataclass(frozen=True)
class FoundLayout:
    """A layout with the estimates for its fullest and its busiest stages."""

    layout: Layout
    checkpoint: tuple[str, ...]
    peak: int
    traffic: int


class Searcher:
    """Estimates layouts of one trace.

    Args:
        planner: the trace's planner.
        checkpoint: the modules checkpointed in it.
    """

    def __init__(self, planner: Planner, checkpoint: tuple[str, ...] = ()) -> None:
        self.planner = planner
        self.checkpoint = checkpoint
        self._estimates: dict[tuple[int, int], list[StageEstimate]] = {}

    @cached_property
    def _groups(self) -> Groups:
        shares = ShardSizes(self.planner.graph, self.planner.dimensions, Layout())
        storages = list(self.planner.traced.storages.values())
        return Groups(self.planner.dimensions, shares, storages)

    def look_at(self, layout: Layout) -> FoundLayout:
        """Estimate a layout.

        Raises:
            InputError: the layout is impossible.
        """
        check_degrees(layout, layout.ranks)
        shares = ShardSizes(self.planner.graph, self.planner.dimensions, layout)
        nbytes = self._groups.nbytes(shares)
        estimates = self._stages(layout)
        return FoundLayout(
            layout,
            self.checkpoint,
            max(estimate.peak(layout, nbytes) for estimate in estimates),
            max(estimate.traffic(layout, nbytes) for estimate in estimates),
        )

    def _stages(self, layout: Layout) -> list[StageEstimate]:
        key = layout.pipeline, layout.interleave
        if key not in self._estimates:
            one = Layout(
                pipeline=layout.pipeline,
                interleave=layout.interleave,
                micro_batches=layout.pipeline if layout.interleave > 1 else 1,
            )
            self._estimates[key] = list(self._sketch(replace(one, stages=layout.stages)))
        return self._estimates[key]

    def _sketch(self, layout: Layout) -> Iterator[StageEstimate]:
        planner = self.planner
        stages = planner.stages(layout)
        for number in range(layout.pipeline):
            rank = Rank(planner.traced, planner.dimensions, layout, planner.blocks, stages, number)
            allocations = list(allocations_of(rank, lambda storage: storage.nbytes))
            yield StageEstimate(rank, self._groups, allocations)

    def layouts(self, gpus: int, wanted: Wanted) -> Iterator[Layout]:
        """Yield every wanted layout of this many GPUs; some may be impossible."""
        dimensions = self.planner.dimensions
        longest = self.planner.blocks.count
        sequence = dimensions.sequence.size if dimensions.sequence is not None else 1
        batch = dimensions.batch.size if dimensions.batch is not None else 1
        tensor = max((column.size for column in dimensions.columns), default=1)
        for degrees in product(
            _choices(wanted.tensor, gpus, tensor),
            _choices(wanted.pipeline, gpus, max(1, longest)),
            _choices(wanted.context, gpus, sequence),
        ):
            tp, pp, cp = degrees
            if gpus % (tp * pp * cp):
                continue
            dp = gpus // (tp * pp * cp)
            if wanted.data not in (None, dp):
                continue
            base = replace(wanted.base, data=dp, tensor=tp, pipeline=pp, context=cp)
            yield from self._variants(base, wanted, batch)

    def _variants(self, base: Layout, wanted: Wanted, batch: int) -> Iterator[Layout]:
        shardings = wanted.shardings if base.sharding_ranks > 1 else (Sharding.REPLICATED,)
        along = [False, True] if base.tensor > 1 else [False]
        if wanted.sequence_parallel is not None and base.tensor > 1:
            along = [wanted.sequence_parallel]
        experts = _choices(wanted.expert, base.data, self._experts)
        counts = [wanted.micro_batches] if wanted.micro_batches else _divisors(batch)
        for sharding, sp, expert, count in product(shardings, along, experts, counts):
            yield replace(
                base, sharding=sharding, sequence_parallel=sp, expert=expert, micro_batches=count
            )

    @cached_property
    def _experts(self) -> int:
        return max(self.planner.dimensions.experts.values(), default=1)


def _choices(fixed: int | None, ranks: int, limit: int) -> list[int]:
    if fixed is not None:
        return [fixed]
    return [each for each in _divisors(ranks) if each <= limit]


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def search(
    target: str,
    searchers: Sequence[Searcher],
    gpus: int,
    wanted: Wanted,
    *,
    by: str,
    top: int,
    progress: Progress = lambda message: None,
) -> Search:
    """Find the layouts that fit.

    Args:
        target: the target's name.
        searchers: one for each trace, for example with and without checkpoints.
        gpus: how many there are.
        wanted: the layouts to choose from.
        by: "headroom" or "traffic".
        top: how many to show.
        progress: called with a description of each stage.
    """
    gpu = searchers[0].planner.runtime.gpu
    started = time.perf_counter()
    found: list[tuple[FoundLayout, Searcher]] = []
    tried = impossible = 0
    for searcher in searchers:
        for layout in searcher.layouts(gpus, wanted):
            try:
                seen = searcher.look_at(layout)
            except InputError:
                impossible += 1
                continue
            tried += 1
            if tried % 100 == 0:
                progress(f"{tried} layouts tried")
            if seen.peak <= _room(searcher, layout):
                found.append((seen, searcher))
    seconds = time.perf_counter() - started
    found.sort(key=_order(by))
    fitting = list(_replayed(found, top, progress))
    fitting.sort(key=lambda each: each.traffic if by == "traffic" else -each.headroom)
    return Search(
        graphmem=__version__,
        target=target,
        gpu=gpu.title,
        memory=gpu.memory_bytes,
        context=gpu.context_bytes,
        gpus=gpus,
        tried=tried,
        impossible=impossible,
        seconds=seconds,
        fitting=fitting,
        notes=[
            _NOTE,
        ],
    )


def _room(searcher: Searcher, layout: Layout) -> int:
    """The bytes that a rank's allocator may reserve."""
    runtime = searcher.planner.runtime
    return runtime.gpu.memory_bytes - outside_allocator(runtime, layout)


def _order(by: str) -> Callable[[tuple[FoundLayout, Searcher]], tuple[int, int]]:
    if by == "traffic":
        return lambda item: (item[0].traffic, item[0].peak)
    return lambda item: (item[0].peak - _room(item[1], item[0].layout), item[0].traffic)


def _replayed(
    found: Iterable[tuple[FoundLayout, Searcher]], top: int, progress: Progress
) -> Iterator[CandidateLayout]:
    shown = 0
    for seen, searcher in found:
        if shown == top:
            return
        progress(f"replaying {seen.layout}")
        ranks = searcher.planner.plan(seen.layout)
        candidate = _candidate(seen, ranks, _room(searcher, seen.layout))
        if candidate.headroom >= 0:
            shown += 1
            yield candidate


def _candidate(seen: FoundLayout, ranks: Sequence[RankPlan], room: int) -> CandidateLayout:
    title = str(seen.layout)
    if seen.checkpoint:
        title += ", checkpoint " + ", ".join(seen.checkpoint)
    return CandidateLayout(
        layout=layout_info(seen.layout, seen.checkpoint),
        title=title,
        peak=max(each.timeline.peak for each in ranks),
        headroom=room - max(each.timeline.reserved for each in ranks),
        traffic=max(sum(item.bytes for item in each.traffic) for each in ranks),
    )
