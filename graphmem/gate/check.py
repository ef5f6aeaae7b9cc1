"""Analyse all targets, or those a change affects, and check them against limits and baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import msgspec

from graphmem.cores import usable_cores
from graphmem.gate.affected import affected_jobs
from graphmem.gate.cache import Cache
from graphmem.gate.compare import TargetVerdict, compare
from graphmem.gate.config import Config, TargetConfig
from graphmem.gate.git import changed_files
from graphmem.gate.jobs import (
    Failure,
    Job,
    Outcome,
    Submit,
    dask_cluster,
    run_all,
)
from graphmem.gate.lock import Lock
from graphmem.gate.processes import local_processes

SCHEMA = "graphmem.check/1"

Status = Literal["same", "smaller", "larger", "new", "failed", "error", "unreached"]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class How:
    """How the analyses run.

    Attributes:
        processes: how many run at a time; None for one per core.
        dask: the address of a Dask scheduler to use instead of processes.
        since: only run targets affected by changes since this revision.
        cached: whether to use earlier reports of the same content.
        timeout: how many seconds each analysis may take, in a local process.
    """

    processes: int | None = None
    dask: str | None = None
    since: str | None = None
    cached: bool = True
    timeout: float | None = None


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one target.

    Attributes:
        status: `larger` grew within its limits, `failed` exceeds one, `error` could not be
            analysed, `unreached` is not affected by the change.
        is_cached: whether an earlier report of the same content was used.
    """

    name: str
    target: str
    status: Status
    is_cached: bool = False
    verdict: TargetVerdict | None = None
    failure: Failure | None = None


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for all targets, in the configuration's order.

    Attributes:
        is_update: whether it became the new baseline.
    """

    schema: str = SCHEMA
    results: list[Result]
    is_update: bool = False

    @property
    def exit_code(self) -> int:
        """The highest of: 0 success, 1 limit exceeded, 2 error in a target, 3 in graphmem."""
        codes = [1 for result in self.results if result.status == "failed"]
        codes += [result.failure.exit_code for result in self.results if result.failure]
        return max(codes, default=0)

    @property
    def analysed(self) -> int:
        """How many targets were analysed in this run."""
        return sum(not each.is_cached and each.status != "unreached" for each in self.results)

    def accepted(self) -> Check:
        """The same outcome accepted as the new baseline; hard limits still apply."""
        results = [_accepted(each) for each in self.results]
        return msgspec.structs.replace(self, results=results, is_update=True)

    def lock(self, before: Lock, config: Config) -> Lock:
        """The baseline updated with the measurements."""
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
        wanted = affected_jobs(jobs, changed, cache.known_sources)
    wanted = [each for job in wanted for each in _with_card(job, chosen[job.name])]
    found = _cached(wanted, cache) if how.cached else {}
    missing = [job for job in wanted if job.name not in found]
    fresh = analyse(missing, how, cache, progress)
    cache.drop_unused()
    outcomes = {**found, **fresh}
    return Check(
        results=[
            _result(job, chosen[job.name], lock, outcomes, is_cached=job.name in found)
            for job in jobs
        ]
    )


def _with_card(job: Job, config: TargetConfig) -> list[Job]:
    """A job, and the same for the card that it must fit on, if that is a different one."""
    if config.fits is None or config.fits == config.gpu:
        return [job]
    request = replace(job.request, gpu=config.fits)
    return [job, replace(job, name=f"{job.name} on {config.fits}", request=request)]


def analyse(
    jobs: Sequence[Job], how: How, cache: Cache, progress: Progress = lambda name, done, total: None
) -> Mapping[str, Outcome]:
    """Run jobs and return their outcomes by name; each is cached as soon as it is available."""
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
    processes = min(how.processes or usable_cores(), jobs)
    return partial(local_processes, processes, how.timeout, is_warm=jobs > processes)


def _cached(jobs: Sequence[Job], cache: Cache) -> dict[str, Outcome]:
    found = {job.name: cache.find(job) for job in jobs}
    return {name: outcome for name, outcome in found.items() if outcome is not None}


def _result(
    job: Job, config: TargetConfig, lock: Lock, outcomes: Mapping[str, Outcome], *, is_cached: bool
) -> Result:
    found = [outcomes.get(each.name) for each in _with_card(job, config)]
    measured, on_card = found[0], found[-1]
    if measured is None or on_card is None:
        return Result(name=job.name, target=config.target, status="unreached")
    if measured.report is None or on_card.report is None:
        failure = measured.failure or on_card.failure
        return Result(name=job.name, target=config.target, status="error", failure=failure)
    memory = on_card.report.memory if config.fits else None
    card = None if memory is None else memory.on_card
    verdict = compare(config, lock.targets.get(job.name), measured.report, card)
    return Result(
        name=job.name,
        target=config.target,
        status=_status(verdict),
        is_cached=is_cached,
        verdict=verdict,
    )


def _status(verdict: TargetVerdict) -> Status:
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
