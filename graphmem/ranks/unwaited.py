"""Tensors held by collectives that nobody waits for (clause 5 of `graphmem.ranks.group`).

A thread polls ten times a second and notes which are done; the group's next collective releases
what was noted (ProcessGroupNCCL.cpp of 2.10: `kWatchdogThreadSleepMillis`, `Watchdog::runLoop`,
`stashed_for_allocator_safety_`, `shelvesToUnstash_`, `workEnqueue`). A program that begins several
and waits for them afterwards is faster than a poll: what it can still wait for, outside of a
backward pass, is held until the next pass begins. Others are released by the group's next
collective, except that a backward pass and the optimizer's step behind it are launched within some
milliseconds: what they began is released by the first collective after that step, after the next
forward or backward pass, or after a graph was compiled, which takes longer than a poll. So the
gradients that hooks reduce in a pass outlast the optimizer's own collectives (modded-nanogpt,
docs/accuracy_compiled.md).

It is a race. A card may hold them until the release after that, since the program runs ahead of it,
and they are not done when the next step's collectives begin: both ranks of
fixtures/cuda/ranks/ddp_static_graph hold the first bucket so long.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from graphmem.graph import Storage
from graphmem.trace.operands import tensors_of
from graphmem.trace.recorder import Recorder
from graphmem.units import format_both


@dataclass(frozen=True, slots=True)
class Beginning:
    """When a collective began.

    Attributes:
        is_launching: whether it was in a backward pass, or before the end of the optimizer's step
            behind it.
        passes: how many passes there were before.
        compiled: how many graphs were compiled before.
    """

    is_launching: bool
    passes: int
    compiled: int

    def is_over(self, now: Beginning, *, is_kept: bool) -> bool:
        """Whether the thread has polled once a collective begins at `now` (clause 5).

        Args:
            now: when that is.
            is_kept: whether the program can still wait for this one.
        """
        if self.is_launching:
            return now != self
        return not is_kept or now.passes != self.passes


class Shelf(NamedTuple):
    """What a collective holds until it is waited for.

    Attributes:
        begun: when it began.
        held: its tensors, and lists of them.
        work: what the program can wait for, as long as it has it.
    """

    begun: Beginning
    held: list[Any]
    work: weakref.ref[Any]

    def is_over(self, now: Beginning) -> bool:
        """Whether a collective that begins now releases it."""
        return self.begun.is_over(now, is_kept=self.work() is not None)


class _Release(NamedTuple):
    """The tick of a collective, and what it released: storages, and the bytes of their blocks."""

    tick: int
    storages: list[tuple[Storage, int]]


def _graphs_compiled() -> int:
    utils = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else utils.counters["stats"]["unique_graphs"]


class Unwaited:
    """Releases what collectives hold, and keeps count of it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._released: dict[int, list[_Release]] = {}

    def began(self) -> Beginning:
        """Note when a collective begins."""
        phases = self._recorder.phases
        is_launching = torch._C._current_graph_task_id() >= 0 or phases.is_updating
        return Beginning(is_launching, phases.passes, _graphs_compiled())

    def let_go(self, group: object, shelves: list[list[Any]]) -> None:
        """Empty lists of tensors, and of lists of tensors, at a collective of a group."""
        storages: dict[int, tuple[Storage, int]] = {}
        for tensor in tensors_of(shelves):
            storage, block = self._recorder.storage_of(tensor), self._recorder.run.block_of(tensor)
            if storage is not None:
                storages[storage.id] = storage, storage.nbytes if block is None else block.size
        release = _Release(self._recorder.next_tick(), [*storages.values()])
        self._released.setdefault(id(group), []).append(release)
        for shelf in shelves:
            shelf.clear()

    def tell(self) -> None:
        """Report how many bytes may be held longer, if any, and what the peak is with them."""
        run = self._recorder.run
        run.settle()
        most, highest = 0, run.highest_between(0, self._recorder.graph.end)
        for gone in self._gone_early():
            held = 0
            for death, nbytes, until in gone:
                held += nbytes
                then = run.highest_between(death, until)
                highest = None if highest is None or then is None else max(highest, then + held)
            most = max(most, held)
        if most:
            peak = "" if highest is None else f", and the peak is then {format_both(highest)}"
            self._recorder.assume(
                "collectives that are never waited for",
                "each holds its tensors until a later collective; up to "
                f"{format_both(most)} may be held until the one after that{peak}",
                "NCCL's watchdog thread decides when",
                None,
                highest,
            )

    def _gone_early(self) -> Iterator[list[tuple[int, int, int]]]:
        """What each release frees, in order: when, how many bytes, and when the next is freed.

        The last of them is followed by the next release of the group, or the end.
        """
        end = self._recorder.graph.end
        for releases in self._released.values():
            ends = [*(each.tick for each in releases[1:]), end]
            for release, until in zip(releases, ends, strict=True):
                deaths = ((storage.death, nbytes) for storage, nbytes in release.storages)
                gone = sorted((at, each) for at, each in deaths if at is not None and at < until)
                ticks = [at for at, _ in gone[1:]] + [until]
                yield [(*each, tick) for each, tick in zip(gone, ticks, strict=False)]
