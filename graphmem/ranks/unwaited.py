"""Tensors held by collectives that nobody waits for (clause 5 of `graphmem.ranks.group`).

A thread of NCCL frees them, at a time that differs from run to run. Those of one iteration that
nothing else holds to the end bound how much a card may hold longer than is assumed here.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from graphmem.graph import Storage
from graphmem.trace.operands import tensors_of
from graphmem.trace.recorder import Recorder
from graphmem.units import format_bytes


class Unwaited:
    """Releases what collectives hold, and keeps count of it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._held: dict[int, tuple[int, Storage]] = {}

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
                "each holds its tensors until the next collective; up to "
                f"{format_bytes(most)} ({most:,} bytes) may be held longer",
                "NCCL's watchdog thread decides when",
                None,
            )
