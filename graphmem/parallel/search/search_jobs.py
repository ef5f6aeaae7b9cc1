"""Run searches as jobs: of one model in this process, or of many on a Dask cluster.

On Dask the same function runs on the workers, which must see the same files at the same paths, as
for `graphmem check --dask` (graphmem/gate/jobs.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from graphmem.analysis import Request
from graphmem.gate.jobs import dask_executor, undisturbed
from graphmem.json_text import json_text
from graphmem.parallel.schema import Search
from graphmem.parallel.search.search import Searcher, Wanted, search
from graphmem.parallel.tracing import planner_for
from graphmem.targets import is_record

Progress = Callable[[str], None]


@dataclass(frozen=True)
class SearchJob:
    """A search of one target.

    Attributes:
        target, request: the target, and how to trace it.
        gpus, wanted, by, top: see `search`.
        blocks: see `Planner`.
    """

    target: str
    request: Request
    gpus: int
    wanted: Wanted
    blocks: str | None
    by: str
    top: int


def run_job(job: SearchJob, progress: Progress = lambda message: None) -> Search:
    """Trace a target and search its layouts.

    If the request does not mention checkpoints, a second trace checkpoints every block, unless the
    step is a saved one.

    Raises:
        InputError: the target cannot be traced, or has no experts to split.
    """
    with undisturbed():
        return _run_job(job, progress)


def _run_job(job: SearchJob, progress: Progress) -> Search:
    precision = job.wanted.base.precision
    name, planner = planner_for(job.target, job.request, precision, job.blocks, progress=progress)
    planner.check_experts(job.wanted.base)
    given = job.request.changes.checkpoint
    searchers = [Searcher(planner, given)]
    if not given and planner.blocks.count > 1 and not is_record(job.target):
        pattern = (f"{planner.blocks.name}.[0-9]*",)
        changes = replace(job.request.changes, checkpoint=pattern)
        request = replace(job.request, changes=changes)
        _, other = planner_for(job.target, request, precision, job.blocks, progress=progress)
        searchers.append(Searcher(other, pattern))
    return search(name, searchers, job.gpus, job.wanted, by=job.by, top=job.top, progress=progress)


def run_jobs(
    jobs: Sequence[SearchJob], dask: str | None, progress: Progress = lambda message: None
) -> list[Search]:
    """Search every target, here or on the workers of a Dask cluster.

    Raises:
        InputError: a target cannot be traced, or no scheduler answers at the address.
    """
    if dask is None:
        return [run_job(job, progress) for job in jobs]
    with dask_executor(dask) as executor:
        futures: list[Future[Search]] = [executor.submit(run_job, job) for job in jobs]
        return [future.result() for future in futures]


def searches_json(found: Sequence[Search]) -> str:
    """One search as an object, several as a list."""
    return json_text(found[0] if len(found) == 1 else list(found))
