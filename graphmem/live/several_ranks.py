"""Run several ranks of a job, each in its own process, one per core at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Semaphore
from typing import Self

import msgspec

from graphmem.json_text import json_text
from graphmem.live.rank_forks import RankRequest, RankServer
from graphmem.ranks import journal, messages, orphans
from graphmem.ranks.journal import Collectives
from graphmem.report import Report

SCHEMA = "graphmem.ranks/1"
MEETING = 8
"""Among so many ranks or fewer, each waits for the others at barriers; each takes memory then."""
_PAUSE = 0.1

Command = Callable[[int, Path], Sequence[str]]
"""graphmem's arguments that run a rank and write its report, as JSON, to a file."""


class RankInfo(msgspec.Struct, frozen=True):
    """How a rank ended; no report if graphmem could not run it."""

    rank: int
    exit_code: int
    report: Report | None


class RanksReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of several ranks.

    Attributes:
        fullest, emptiest: the ranks with the highest and the lowest peak of allocated bytes, of
            those that did not fail; the first of several such ranks, None where all failed.
    """

    schema: str = SCHEMA
    world_size: int
    fullest: int | None
    emptiest: int | None
    ranks: list[RankInfo]

    @classmethod
    def of(cls, world_size: int, ranks: list[RankInfo]) -> Self:
        """The report of finished ranks."""
        well = [(each.rank, each.report) for each in ranks if each.exit_code == 0]
        peaks = {rank: report.peak.allocated for rank, report in well if report is not None}
        return cls(
            world_size=world_size,
            fullest=max(peaks, key=peaks.__getitem__, default=None),
            emptiest=min(peaks, key=peaks.__getitem__, default=None),
            ranks=ranks,
        )

    def to_json(self) -> str:
        """The report as indented JSON."""
        return json_text(self)


@dataclass(frozen=True)
class RankOutcome:
    """How a rank ended, its output, and its collectives if it ended well."""

    info: RankInfo
    stdout: str
    stderr: str
    collectives: Collectives | None


def outcomes(ranks: Sequence[int], command: Command, at_once: int) -> Iterator[RankOutcome]:
    """Run each rank, and yield the outcomes in the order of ranks; nothing is left running.

    Up to `MEETING` ranks meet at barriers, so each of them runs before the first need have ended:
    one that waits for another leaves its core to the next.
    """
    do_meet = len(ranks) <= MEETING
    with (
        TemporaryDirectory(prefix="graphmem-ranks-") as folder,
        ThreadPoolExecutor(len(ranks) if do_meet else at_once) as pool,
        RankServer() as server,
    ):
        processes = _Processes(command, Path(folder), ranks if do_meet else (), at_once, server)
        yield from pool.map(processes.run, ranks)


class _Processes:
    """The processes of ranks."""

    def __init__(
        self,
        command: Command,
        folder: Path,
        meeting: Sequence[int],
        at_once: int,
        server: RankServer,
    ) -> None:
        """Begin.

        Args:
            command: runs a rank.
            folder: takes their messages and reports.
            meeting: the ranks that wait for each other.
            at_once: how many run at once, without those that wait.
            server: starts them.
        """
        self._command = command
        self._folder = folder
        self._cores = Semaphore(at_once)
        self._server = server
        self._variables = {
            **os.environ,
            **dict.fromkeys((journal.FOLDER, messages.FOLDER), str(folder)),
            messages.BESIDE: ",".join(map(str, meeting)),
            **orphans.variables(server.pid),
        }
        for rank in meeting:
            messages.mark_started(rank, folder)

    def run(self, rank: int) -> RankOutcome:
        report, stdout, stderr = (
            self._folder / f"{rank}.{name}" for name in ("json", "stdout", "stderr")
        )
        exit_code = self._ended(rank, report, stdout, stderr)
        found = Report.from_json(report.read_bytes()) if report.exists() else None
        out, err = (each.read_text(errors="replace") for each in (stdout, stderr))
        made = None if exit_code else Collectives.read(self._folder, rank)
        return RankOutcome(RankInfo(rank, exit_code, found), out, err, made)

    def _ended(self, rank: int, report: Path, stdout: Path, stderr: Path) -> int:
        with ExitStack() as core:
            core.enter_context(self._cores)
            messages.mark_started(rank, self._folder)
            arguments = list(self._command(rank, report))
            self._server.start(
                RankRequest(rank, arguments, self._variables, str(stdout), str(stderr))
            )
            try:
                while not (self._server.has_ended(rank) or messages.is_waiting(rank, self._folder)):
                    time.sleep(_PAUSE)
                core.close()
                return self._server.wait(rank)
            finally:
                messages.mark_ended(rank, self._folder)
