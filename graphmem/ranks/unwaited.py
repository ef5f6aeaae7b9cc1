"""What collectives hold that nobody waits for (clause 4 of `graphmem.ranks.group`).

A thread of NCCL's lets it go, at a time that no two runs share. What it holds of an iteration, and
nobody holds to the end, is a bound on what may be held longer than here.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from graphmem.graph import Storage
from graphmem.trace.operands import tensors_of
from graphmem.trace.recorder import Recorder
from graphmem.units import format_bytes


class Unwaited:
    """Lets go of what collectives hold."""

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
        """Say how many bytes may be held longer, if there are any."""
        end = self._recorder.graph.end
        of_step: Counter[int] = Counter()
        for step, storage in self._held.values():
            if storage.death is not None and storage.death < end:
                of_step[step] += storage.nbytes
        most = max(of_step.values(), default=0)
        if most:
            self._recorder.assume(
                "collectives",
                "what nobody waits for is let go at the next one; up to "
                f"{format_bytes(most)} ({most:,} bytes) may be held longer",
                "a thread of NCCL's decides",
                None,
            )
