"""The inputs of `graphmem diff`: targets, saved files, or two git revisions.

A saved file is a report (`analyze --format json`), or a step (`--save`), from which a report is
made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from graphmem.analysis import Request, analysis_of
from graphmem.errors import InputError
from graphmem.gate.cache import Cache
from graphmem.gate.check import How, analyse
from graphmem.gate.config import find_config, load_config
from graphmem.gate.diff import Diff, diff_reports
from graphmem.gate.git import revisions_of, worktree
from graphmem.gate.jobs import Job, Outcome
from graphmem.gate.messages import CannotReadError, NotReportError
from graphmem.record import load
from graphmem.report import Report
from graphmem.targets import RECORD, is_record

_SAVED = (".json", RECORD)


def diff_two(base: str, head: str, request: Request) -> Diff:
    """Compare two targets, or saved reports.

    Raises:
        InputError: one of them cannot be read or analysed.
    """
    here = Path.cwd()
    jobs = {side: Job(side, here, side, request) for side in (base, head)}
    wanted = [job for side, job in jobs.items() if not side.endswith(_SAVED)]
    outcomes = _outcomes(wanted, Cache(here))
    before, after = (
        _read(side) if side.endswith(_SAVED) else _report(side, outcomes[side])
        for side in (base, head)
    )
    return diff_reports(head, before, after)


def diff_revisions(span: str, targets: Sequence[str], request: Request) -> list[Diff]:
    """Compare targets at two revisions: the named ones, or all in the configuration.

    Raises:
        InputError: a revision does not exist, or a target cannot be analysed at one.
    """
    base, head = revisions_of(span)
    root, jobs = _jobs(targets, request)
    cache = Cache(root)
    with worktree(root, base) as old, worktree(root, head) as new:
        sides = [
            replace(job, name=f"{job.name} at {revision}", root=place)
            for job in jobs
            for revision, place in ((base, old), (head, new))
        ]
        outcomes = _outcomes(sides, cache)
    reports = [_report(job.name, outcomes[job.name]) for job in sides]
    pairs = zip(jobs, reports[::2], reports[1::2], strict=True)
    return [diff_reports(job.name, before, after) for job, before, after in pairs]


def _jobs(targets: Sequence[str], request: Request) -> tuple[Path, list[Job]]:
    """The folder and the jobs; a name is one of the configuration's, or else a target."""
    try:
        config = load_config(find_config(Path.cwd()))
    except InputError:
        if not targets:
            raise
        return Path.cwd(), [Job(target, Path.cwd(), target, request) for target in targets]
    chosen = targets or list(config.targets)
    jobs = []
    for name in chosen:
        known = config.targets.get(name)
        target, options = (known.target, known.request()) if known else (name, request)
        jobs.append(Job(name, config.root, target, options))
    return config.root, jobs


def _outcomes(jobs: Sequence[Job], cache: Cache) -> Mapping[str, Outcome]:
    found = {job.name: cache.find(job) for job in jobs}
    fresh = analyse([job for job in jobs if found[job.name] is None], How(), cache)
    return {name: outcome or fresh[name] for name, outcome in found.items()}


def _report(name: str, outcome: Outcome) -> Report:
    if outcome.report is not None:
        return outcome.report
    failure = outcome.failure
    assert failure is not None
    error = InputError(
        f"{name}: {failure.message}", hint=failure.hint, user_traceback=failure.user_traceback
    )
    raise error


def _read(path: str) -> Report:
    if is_record(path):
        return analysis_of(load(Path(path))).report
    try:
        return Report.from_json(Path(path).read_bytes())
    except OSError as error:
        raise CannotReadError(path, error.strerror) from error
    except msgspec.DecodeError as error:
        raise NotReportError(path, error) from error
