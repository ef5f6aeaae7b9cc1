"""Tensors held by collectives that nobody waits for (clause 5 of `graphmem.ranks.group`).

A thread of NCCL frees them, at a time that differs from run to run. Those of one iteration that
nothing else holds to the end bound how much a card may hold longer than is assumed here.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from graphmem.graph import PhaseName, Storage
from graphmem.trace.operands import tensors_of
from graphmem.trace.recorder import Recorder
from graphmem.units import format_bytes


@dataclass(frozen=True, slots=True)
class Beginning:
    """When a collective began.

    Attributes:
        walk: the backward pass that began it; -1 if none.
        since: in an optimizer's step, how many passes and compilations there were before.
    """

    walk: int
    since: tuple[int, int] | None

    def is_over(self, now: Beginning) -> bool:
        """Whether the thread has polled once a collective begins at `now` (clause 5)."""
        if self.since is not None:
            return now.since != self.since
        return now.walk < 0 or now.walk != self.walk


def _graphs_compiled() -> int:
    utils = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else utils.counters["stats"]["unique_graphs"]


class Unwaited:
    """Releases what collectives hold, and keeps count of it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._held: dict[int, tuple[int, Storage]] = {}

    def began(self) -> Beginning:
        """Note when a collective begins."""
        phases = self._recorder.phases
        is_update = phases.running is PhaseName.OPTIMIZER
        since = (phases.passes, _graphs_compiled()) if is_update else None
        return Beginning(torch._C._current_graph_task_id(), since)

    def let_go(self, held: list[Any]) -> None:
        """Empty a list of tensors, and of lists of tensors."""
        step = self._recorder.phases.step
        for tensor in tensors_of(held):
            storage = self._recorder.storage_of(tensor)
            if storage is not None:
                self._held[storage.id] = step, storage
        held.clear()

    def tell(self) -> None:
        """Report how many bytes may be held longer, if any."""
        end = self._recorder.graph.end
        of_step: Counter[int] = Counter()
        for step, storage in self._held.values():
            if storage.death is not None and storage.death < end:
                of_step[step] += storage.nbytes
        most = max(of_step.values(), default=0)
        if most:
            self._recorder.assume(
                "collectives that are never waited for",
                "each holds its tensors until a later collective; up to "
                f"{format_bytes(most)} ({most:,} bytes) may be held longer",
                "NCCL's watchdog thread decides when",
                None,
            )
