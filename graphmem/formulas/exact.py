"""The exact result of an analysis at a moment that a formula is about, by roles of storages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphmem.errors import InputError
from graphmem.formulas.blocks import Blocks
from graphmem.formulas.estimate import Moment
from graphmem.formulas.roles import ROUNDING, Role, Roles
from graphmem.graph import Category, Phase, PhaseName, Storage

if TYPE_CHECKING:
    from graphmem.analysis import Analysis
    from graphmem.simulate import Timeline

_STATES = (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE)


@dataclass(frozen=True)
class Exact:
    """Bytes at one moment; `by_role` has requested bytes and, as a role of its own, rounding.

    Attributes:
        allocated: the bytes of the blocks that the allocator gave, the sum of `by_role`.
        by_role: what they are for.
    """

    allocated: int
    by_role: Mapping[Role, int]


def exact_at(analysis: Analysis, blocks: Blocks) -> dict[Moment, Exact]:
    """The exact result at each moment.

    Raises:
        InputError: the step has no backward pass.
    """
    graph, timeline = analysis.graph, analysis.timeline
    roles = Roles.of(graph, analysis.annotations, blocks)
    forward = _last_phase(analysis, PhaseName.FORWARD)
    backward = _last_phase(analysis, PhaseName.BACKWARD)
    before = timeline.at(forward.start - 1)
    after = timeline.at(forward.end)
    ended = timeline.at(backward.end)
    peak, _ = timeline.peak()
    steady = timeline.alive_at(before)
    held = {storage.id for storage in steady}
    made = [storage for storage in timeline.alive_at(after) if storage.id not in held]
    states = [
        storage
        for storage in timeline.alive_at(ended)
        if storage.category_at(ended.tick) in _STATES
    ]
    at = {
        Moment.STEADY: (steady, before.tick),
        Moment.FORWARD: (made, forward.end),
        Moment.STATES: (states, ended.tick),
        Moment.PEAK: (timeline.alive_at(peak), peak.tick),
    }
    return {
        moment: _exact(storages, tick, timeline, roles) for moment, (storages, tick) in at.items()
    }


def _exact(storages: list[Storage], tick: int, timeline: Timeline, roles: Roles) -> Exact:
    by_role = roles.bytes_by_role(storages, tick)
    allocated = sum(timeline.block_bytes[storage.id] for storage in storages)
    return Exact(allocated, by_role | {Role(ROUNDING): allocated - sum(by_role.values())})


def _last_phase(analysis: Analysis, name: PhaseName) -> Phase:
    found = [phase for phase in analysis.graph.phases if phase.name is name]
    if not found:
        raise InputError(
            f"the step has no {name} phase, and published formulas are of training steps",
            hint="without a target, `--term` gives them what they need",
        )
    return found[-1]
