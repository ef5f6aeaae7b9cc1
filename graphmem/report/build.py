"""Build a report from a step graph and its timeline."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from msgspec import UNSET

from graphmem.annotations import FULLEST_FORWARD, UNMODELLED
from graphmem.forward_passes import saved_at
from graphmem.gpus import label_of
from graphmem.graph import (
    Category,
    Owner,
    OwnerKind,
    Phase,
    PhaseName,
    StepGraph,
    Storage,
)
from graphmem.layer_ranges import fold
from graphmem.moments import Moment
from graphmem.pipeline import Annotations, HasReportLines, KnowsReasons
from graphmem.report.kept import Categories
from graphmem.report.reasons import reason_for
from graphmem.report.schema import (
    GROWTH,
    ROUNDING,
    AssumptionInfo,
    AtPeak,
    Findings,
    Holder,
    MarkInfo,
    MemoryInfo,
    ModelInfo,
    OwnerInfo,
    Peak,
    PhaseInfo,
    Report,
    RuntimeInfo,
    StepInfo,
)
from graphmem.runtime import Runtime
from graphmem.simulate import Timeline
from graphmem.torch_releases.assumed import assumed_of
from graphmem.version import __version__

if TYPE_CHECKING:
    from graphmem.record import TracedStep

OUTSIDE = "(outside any module)"
TIMELINE_PARTS = 72


URGENT = ("out of memory", GROWTH, "fragmentation")
"""Findings that precede all others, in this order."""


def build_report(
    captured: TracedStep,
    annotations: Annotations,
    timeline: Timeline,
    memory: MemoryInfo | None = None,
) -> Report:
    """Build the report of a captured step and its annotations.

    Args:
        captured: the step.
        annotations: the results of the passes.
        timeline: the timeline with unlimited memory; that of a program which ran.
        memory: the section on allocator and card (`report.memory`).
    """
    graph, runtime = captured.graph, captured.runtime
    moment, storage = timeline.peak()
    return Report(
        graphmem=__version__,
        target=captured.name,
        options=captured.options,
        runtime=_runtime(runtime),
        model=_model(graph, moment.tick),
        steps=[_step(graph, timeline, step) for step in range(graph.steps)],
        peak=_peak(graph, moment, storage),
        at_peak=AliveStorages(graph, annotations, timeline, moment).build(),
        saved_for_backward=saved_for_backward(annotations.of(FULLEST_FORWARD), graph),
        operations=len(graph.ops),
        memory=memory,
        ran=captured.observed.on_card if captured.observed is not None else None,
        timeline=_highest_of_parts(timeline),
        host=graph.host,
        calls=fold(graph.calls),
        assumptions=_assumptions(graph, annotations, runtime, storage),
        findings=[
            Findings(name, lines)
            for name, annotation in sorted(annotations.items(), key=_urgency)
            if isinstance(annotation, HasReportLines) and (lines := list(annotation.report_lines()))
        ],
    )


def _assumptions(
    graph: StepGraph, annotations: Annotations, runtime: Runtime, at_peak: Storage | None
) -> list[AssumptionInfo]:
    op = None if at_peak is None else graph.op_of(at_peak)
    assumed = (*graph.assumptions, *annotations.of(UNMODELLED), *assumed_of(runtime.torch))
    return [
        AssumptionInfo(
            each.what,
            each.value,
            each.why,
            _text(each.source),
            each.times,
            _text(each.source.called_from) if each.source is not None else None,
            True if op is not None and op.index in each.ops else UNSET,
            UNSET if each.highest is None else each.highest,
        )
        for each in assumed
    ]


def _urgency(item: tuple[str, object]) -> tuple[int, str]:
    name, _ = item
    return URGENT.index(name) if name in URGENT else len(URGENT), name


def _highest_of_parts(timeline: Timeline) -> list[int]:
    moments = timeline.moments
    parts = min(TIMELINE_PARTS, len(moments))
    bounds = [len(moments) * i // parts for i in range(parts + 1)]
    return [max(moments.allocated[first:last]) for first, last in pairwise(bounds)]


def saved_for_backward(forward: int | None, graph: StepGraph) -> int:
    """Requested bytes, except parameters, that autograd holds after a forward phase."""
    if forward is None:
        return 0
    return sum(storage.nbytes for storage in saved_at(graph.phases[forward].end, graph))


def _runtime(runtime: Runtime) -> RuntimeInfo:
    major, minor = runtime.gpu.compute_capability
    return RuntimeInfo(
        gpu=label_of(runtime.gpu),
        title=runtime.gpu.title,
        memory=runtime.gpu.memory_bytes,
        compute_capability=f"{major}.{minor}",
        torch=runtime.torch,
        env=dict(runtime.env),
    )


def _model(graph: StepGraph, peak: int) -> ModelInfo:
    """What the model holds after the last optimizer's step; without one, in the end.

    At the end of a program its model may be gone, or a part of it; then, at the peak.
    """
    steps = [mark.tick for mark in graph.marks if mark.name == "optimizer.step"]

    def held_as(kind: OwnerKind, at: int) -> list[Storage]:
        alive = (each for each in graph.storages if each.birth <= at and each.owners_at(at))
        return [each for each in alive if each.owned_as(kind) and each.device == graph.device]

    def parameter_bytes(at: int) -> int:
        return sum(storage.nbytes for storage in held_as(OwnerKind.PARAMETER, at))

    now = max(steps) if steps else max(graph.end, peak, key=parameter_bytes)
    now = now if held_as(OwnerKind.PARAMETER, now) else peak

    def nbytes(kind: OwnerKind) -> int:
        return sum(storage.nbytes for storage in held_as(kind, now))

    held = held_as(OwnerKind.PARAMETER, now)
    parameters = [each for each in held if not each.owned_as(OwnerKind.COPY)] or held
    gradients = [each for each in graph.storages if each.owned_as(OwnerKind.GRADIENT)]
    last = max((phase.end for phase in graph.phases if phase.name is PhaseName.BACKWARD), default=0)
    return ModelInfo(
        parameters=sum(_elements(storage.shape) for storage in parameters),
        parameter_bytes=sum(storage.nbytes for storage in parameters),
        buffer_bytes=nbytes(OwnerKind.BUFFER),
        gradient_bytes=sum(each.nbytes for each in gradients if each.owners_at(last)),
        optimizer_state_bytes=nbytes(OwnerKind.OPTIMIZER_STATE),
    )


def _elements(shape: Iterable[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _step(graph: StepGraph, timeline: Timeline, step: int) -> StepInfo:
    return StepInfo(
        step=step,
        phases=[_phase(timeline, phase) for phase in graph.phases_of(step)],
        marks=[
            MarkInfo(mark.name, timeline.at(mark.tick).allocated)
            for mark in graph.marks
            if mark.step == step
        ],
    )


def _phase(timeline: Timeline, phase: Phase) -> PhaseInfo:
    return PhaseInfo(
        name=phase.name,
        start=timeline.at(phase.start - 1).allocated,
        end=timeline.at(phase.end).allocated,
        peak=timeline.peak(phase.start, phase.end)[0].allocated,
    )


def _peak(graph: StepGraph, moment: Moment, storage: Storage | None) -> Peak:
    return Peak(
        allocated=moment.allocated,
        requested=moment.requested,
        reserved=moment.reserved,
        **place_of(graph, moment.tick, storage)._asdict(),
    )


class Place(NamedTuple):
    """A place in the trace; step -1 is before the first step."""

    step: int
    phase: str
    op: str | None
    module: str
    source: str | None


def place_of(graph: StepGraph, tick: int, storage: Storage | None) -> Place:
    """The phase at `tick`, and the operation that allocated `storage`."""
    op = graph.op_of(storage) if storage is not None else None
    phase = next((each for each in graph.phases if each.start <= tick <= each.end), None)
    return Place(
        step=phase.step if phase is not None else -1,
        phase=phase.name if phase is not None else PhaseName.SETUP,
        op=op.target if op is not None else None,
        module=op.module if op is not None else "",
        source=_text(op.source) if op is not None else None,
    )


class AliveStorages:
    """The storages alive at a moment, with reasons."""

    def __init__(
        self,
        graph: StepGraph,
        annotations: Annotations,
        timeline: Timeline,
        moment: Moment,
    ) -> None:
        self._graph = graph
        self._categories = Categories(graph)
        self._reasons = [each for each in annotations.values() if isinstance(each, KnowsReasons)]
        self._blocks = timeline.block_bytes
        self._moment = moment
        self._op_ticks = [op.tick for op in graph.ops]
        self._alive = timeline.alive_at(moment)

    def build(self, most: int | None = None) -> AtPeak:
        """Sums by category and module, and at most `most` holders, largest first."""
        by_category = dict.fromkeys([*Category, ROUNDING], 0)
        by_module: dict[str, int] = {}
        for storage in self._alive:
            module = module_of(storage, self._graph) or OUTSIDE
            by_category[self._categories.of(storage, self._moment.tick)] += storage.nbytes
            by_module[module] = by_module.get(module, 0) + self._blocks[storage.id]
        by_category[ROUNDING] = self._moment.allocated - sum(by_category.values())
        by_size = sorted(self._alive, key=lambda storage: (-storage.nbytes, storage.id))
        return AtPeak(
            by_category={str(category): nbytes for category, nbytes in by_category.items()},
            by_module=dict(sorted(by_module.items(), key=lambda item: (-item[1], item[0]))),
            holders=[self._holder(storage) for storage in by_size[:most]],
        )

    def _holder(self, storage: Storage) -> Holder:
        tick = self._moment.tick
        op = self._graph.op_of(storage)
        return Holder(
            bytes=storage.nbytes,
            block=self._blocks[storage.id],
            category=self._categories.of(storage, tick),
            op=op.target if op is not None else None,
            shape=list(storage.shape),
            dtype=storage.dtype,
            module=module_of(storage, self._graph),
            source=_text(op.source) if op is not None else None,
            reason=reason_for(
                storage,
                tick,
                self._graph,
                [each for known in self._reasons for each in known.reasons_for(storage.id, tick)],
            ),
            owners=[self._owner(owner) for owner in storage.owners_at(tick)],
        )

    def _owner(self, owner: Owner) -> OwnerInfo:
        first = bisect_right(self._op_ticks, owner.start) - 1
        last = None if owner.end is None else bisect_left(self._op_ticks, owner.end) - 1
        return OwnerInfo(
            kind=owner.kind,
            name=owner.name,
            first_op=first if first >= 0 else None,
            last_op=last,
            source=_text(owner.source),
        )


def module_of(storage: Storage, graph: StepGraph) -> str:
    """The module of a storage: its parameter's, else the one that allocated it."""
    for owner in storage.owners:
        if owner.kind in NAMED_AFTER_PARAMETERS:
            return _module_of_parameter(owner)
    op = graph.op_of(storage)
    return "" if op is None else op.module


NAMED_AFTER_PARAMETERS = frozenset(
    {
        OwnerKind.PARAMETER,
        OwnerKind.BUFFER,
        OwnerKind.GRADIENT,
        OwnerKind.OPTIMIZER_STATE,
        OwnerKind.AUTOCAST_CACHE,
    }
)
_SUFFIXED = frozenset({OwnerKind.GRADIENT, OwnerKind.OPTIMIZER_STATE})


def _module_of_parameter(owner: Owner) -> str:
    name = owner.name.rpartition(".")[0] if owner.kind in _SUFFIXED else owner.name
    return name.rpartition(".")[0]


def _text(source: object | None) -> str | None:
    return None if source is None else str(source)
