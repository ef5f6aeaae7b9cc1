"""Analyses as jobs and outcomes, run in parallel or on a cluster.

Clauses:
  (1) each local job has its own process, so nothing leaks from one target to the next, and a crash
      affects no other;
  (2) on Dask the same function runs on the workers, which must see the same files at the same
      paths. A trace patches torch, so the threads of one worker take turns, and the worker's
      sampling profiler is paused meanwhile (`undisturbed`).
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from graphmem.analysis import Request
from graphmem.errors import GraphmemError, InternalError
from graphmem.gate.dependencies import recording_files_read
from graphmem.gate.messages import AnalysisDiedError, NoDaskError, NoSchedulerError
from graphmem.report import Report
from graphmem.time_limit import time_limit

Submit = Callable[["Job"], "Future[Outcome]"]
Done = Callable[["Job", "Outcome"], None]

_ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True)
class Job:
    """An analysis: a target, in a folder, with a name."""

    name: str
    root: Path
    target: str
    request: Request


class Failure(msgspec.Struct, frozen=True):
    """The reason why there is no report; the exit code tells whose fault it is.

    Attributes:
        source: the user's line that failed, or None.
    """

    exit_code: int
    message: str
    hint: str | None = None
    user_traceback: str | None = None
    source: str | None = None


class Outcome(msgspec.Struct, frozen=True):
    """A report or a failure, with the digests of the files that it depends on."""

    report: Report | None
    sources: dict[str, str] = {}
    failure: Failure | None = None


def perform(job: Job, timeout: float | None = None) -> Outcome:
    """Analyse a target in its folder; the user code's output goes to stderr.

    Args:
        job: the analysis.
        timeout: how many seconds it may take; only works in the main thread.
    """
    from graphmem.analysis import analyze

    options = {each: getattr(job.request, each) for each in Request.__dataclass_fields__}
    with undisturbed(), contextlib.chdir(job.root), contextlib.redirect_stdout(sys.stderr):
        with recording_files_read() as sources:
            try:
                with time_limit(timeout):
                    outcome = Outcome(analyze(job.target, **options))
            except GraphmemError as error:
                outcome = failed(error)
            except Exception as error:  # noqa: BLE001 - one target's error must not stop the others
                text = f"graphmem itself failed: {type(error).__name__}: {error}"
                outcome = failed(InternalError(text))
        return msgspec.structs.replace(outcome, sources=sources.digests(job.root))


@contextmanager
def undisturbed() -> Iterator[None]:
    """Trace exclusively in this process, with a Dask worker's sampling profiler paused.

    The profiler keeps references to running frames (`Worker.trigger_profile` in
    distributed/worker.py), and thereby to tensors that would otherwise be freed.
    """
    with _ONE_AT_A_TIME:
        worker = _dask_worker()
        sampler = None if worker is None else worker.periodic_callbacks.get("profile")
        if worker is None or sampler is None or not sampler.is_running():
            yield
            return
        _run_on_loop(worker, sampler.stop)
        try:
            yield
        finally:
            _run_on_loop(worker, sampler.start)


def _dask_worker() -> Any:
    """The Dask worker of this thread, or None."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None
    try:
        return distributed.get_worker()
    except ValueError:
        return None


def _run_on_loop(worker: Any, act: Callable[[], None]) -> None:
    """Call a function on the worker's event loop, where the profiler runs, and wait for it."""
    done = threading.Event()
    worker.loop.add_callback(act)
    worker.loop.add_callback(done.set)
    done.wait()


def failed(error: GraphmemError) -> Outcome:
    """The outcome for an error."""
    failure = Failure(
        error.exit_code, str(error), error.hint, error.user_traceback, error.user_line
    )
    return Outcome(None, failure=failure)


def run_all(jobs: Sequence[Job], submit: Submit, done: Done) -> None:
    """Submit every job, and pass on each outcome as it arrives."""
    futures: dict[Future[Outcome], Job] = {submit(job): job for job in jobs}
    for future in as_completed(futures):
        done(futures[future], _outcome(future))


def _outcome(future: Future[Outcome]) -> Outcome:
    try:
        return future.result()
    except Exception as error:  # noqa: BLE001 - the cluster lost it
        return failed(AnalysisDiedError(type(error).__name__, error))


@contextmanager
def dask_cluster(address: str) -> Iterator[Submit]:
    """Run jobs on the workers of a Dask cluster.

    Raises:
        InputError: as for `dask_executor`.
    """
    with dask_executor(address) as executor:
        yield lambda job: executor.submit(perform, job)


@contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """The workers of a Dask cluster as a standard library executor.

    Raises:
        InputError: Dask is not installed, or no scheduler answers at the address.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise NoDaskError() from error
    try:
        client = Client(address)
    except (OSError, ValueError) as error:
        raise NoSchedulerError(address, error) from error
    with client:
        yield client.get_executor(pure=False)
