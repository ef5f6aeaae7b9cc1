"""Analyse every target, or what a change can reach, and hold each against limits and baseline."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Literal

import msgspec

from graphmem.gate.cache import Cache
from graphmem.gate.compare import Verdict, compare
from graphmem.gate.config import Config, TargetConfig
from graphmem.gate.git import changed_files
from graphmem.gate.jobs import (
    Failure,
    Job,
    Outcome,
    Submit,
    dask_cluster,
    local_processes,
    run_all,
)
from graphmem.gate.lock import Lock
from graphmem.gate.reach import reached

SCHEMA = "graphmem.check/1"

Status = Literal["same", "smaller", "larger", "new", "failed", "error", "unreached"]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class How:
    """How the analyses run.

    Attributes:
        processes: at a time; None for one on each core.
        dask: address of a Dask scheduler, in place of processes.
        since: run only what changes since this revision can reach.
        cached: whether earlier reports of the same content may be used.
    """

    processes: int | None = None
    dask: str | None = None
    since: str | None = None
    cached: bool = True


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one target.

    Attributes:
        status: `larger` grew within its limits, `failed` exceeds one, `error` could not be
            analysed, `unreached` was not.
        is_cached: whether an earlier report of the same content was used.
    """

    name: str
    target: str
    status: Status
    is_cached: bool = False
    verdict: Verdict | None = None
    failure: Failure | None = None


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for all targets, in the configuration's order.

    Attributes:
        is_update: whether it became the baseline.
    """

    schema: str = SCHEMA
    results: list[Result]
    is_update: bool = False

    @property
    def exit_code(self) -> int:
        """0 fine, 1 a limit is exceeded, 2 a target is at fault, 3 graphmem is: the highest."""
        codes = [1 for result in self.results if result.status == "failed"]
        codes += [result.failure.exit_code for result in self.results if result.failure]
        return max(codes, default=0)

    @property
    def analysed(self) -> int:
        """How many targets were analysed anew."""
        return sum(not each.is_cached and each.status != "unreached" for each in self.results)

    def accepted(self) -> Check:
        """The same outcome as the new baseline: its growth is meant, hard limits stay."""
        results = [_accepted(each) for each in self.results]
        return msgspec.structs.replace(self, results=results, is_update=True)

    def lock(self, before: Lock, config: Config) -> Lock:
        """The baseline with what was measured."""
        measured = {each.name: each.verdict.after for each in self.results if each.verdict}
        return before.updated(measured, frozenset(config.targets))


def run_check(
    config: Config,
    lock: Lock,
    names: Sequence[str] = (),
    how: How | None = None,
    progress: Progress = lambda name, done, total: None,
) -> Check:
    """Check targets by name, or all of them.

    Raises:
        InputError: a name, the revision or the cluster does not exist.
    """
    how = how or How()
    chosen = config.chosen(names)
    jobs = [
        Job(name, config.root, target.target, target.request()) for name, target in chosen.items()
    ]
    cache = Cache(config.root)
    wanted = jobs
    if how.since is not None:
        changed = changed_files(config.root, how.since)
        wanted = reached(jobs, changed, cache.known_sources)
    found = _cached(wanted, cache) if how.cached else {}
    missing = [job for job in wanted if job.name not in found]
    fresh = analyse(missing, how, cache, progress)
    cache.drop_unused()
    return Check(
        results=[
            _result(name, target, lock, found.get(name), fresh.get(name))
            for name, target in chosen.items()
        ]
    )


def analyse(
    jobs: Sequence[Job], how: How, cache: Cache, progress: Progress = lambda name, done, total: None
) -> Mapping[str, Outcome]:
    """The outcomes of jobs by name; each is cached as soon as it is there."""
    outcomes: dict[str, Outcome] = {}
    if not jobs:
        return outcomes

    def done(job: Job, outcome: Outcome) -> None:
        cache.keep(job, outcome)
        outcomes[job.name] = outcome
        progress(job.name, len(outcomes), len(jobs))

    progress("", 0, len(jobs))
    with _workers(how, len(jobs))() as submit:
        run_all(jobs, submit, done)
    return outcomes


def _workers(how: How, jobs: int) -> Callable[[], AbstractContextManager[Submit]]:
    if how.dask is not None:
        return partial(dask_cluster, how.dask)
    cores = len(os.sched_getaffinity(0))
    return partial(local_processes, min(how.processes or cores, jobs))


def _cached(jobs: Sequence[Job], cache: Cache) -> dict[str, Outcome]:
    found = {job.name: cache.find(job) for job in jobs}
    return {name: outcome for name, outcome in found.items() if outcome is not None}


def _result(
    name: str, config: TargetConfig, lock: Lock, cached: Outcome | None, fresh: Outcome | None
) -> Result:
    outcome = cached or fresh
    if outcome is None:
        return Result(name=name, target=config.target, status="unreached")
    if outcome.report is None:
        return Result(name=name, target=config.target, status="error", failure=outcome.failure)
    verdict = compare(config, lock.targets.get(name), outcome.report)
    return Result(
        name=name,
        target=config.target,
        status=_status(verdict),
        is_cached=cached is not None,
        verdict=verdict,
    )


def _status(verdict: Verdict) -> Status:
    if verdict.findings:
        return "failed"
    if verdict.before is None:
        return "new"
    difference = verdict.after.allocated - verdict.before.allocated
    if difference:
        return "larger" if difference > 0 else "smaller"
    return "same"


def _accepted(result: Result) -> Result:
    if result.verdict is None:
        return result
    findings = [finding for finding in result.verdict.findings if finding.before is None]
    verdict = msgspec.structs.replace(result.verdict, findings=findings)
    return msgspec.structs.replace(result, verdict=verdict, status=_status(verdict))
