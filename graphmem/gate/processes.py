"""Run each analysis in its own process, and explain why one ended without an answer.

The analysed code ended such a process, by `os._exit` or a crash in native code. The standard
library's faulthandler writes the line to a file.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from graphmem.environment import environment
from graphmem.errors import InputError
from graphmem.frames import Origin, is_program, origin_of
from graphmem.gate.jobs import Job, Outcome, Submit, failed, perform
from graphmem.gate.messages import (
    NativeCrashError,
    ProcessEndedError,
    ProcessKilledError,
    StoppedError,
)
from graphmem.time_limit import took_longer

_IMPORTED = ("graphmem.trace", "graphmem.report.build", "graphmem.gate.processes")
_ANALYSED = ("graphmem.gate.preload",)
_FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+) in ')
_SAFE_PATH, _OURS = "PYTHONSAFEPATH", "graphmem"
"""The variable by which Python leaves out the working folder; any value does."""
_UNTIL_NOTED = 1.0
_UNTIL_KILLED = 3.0
_UNTIL_ENDED = 5.0


def _forkserver(preloaded: Sequence[str]) -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preloaded))
    return context


@contextmanager
def local_processes(
    count: int, timeout: float | None = None, *, is_warm: bool = False
) -> Iterator[Submit]:
    """Run jobs in `count` processes at a time, which are stopped when the context exits.

    Args:
        count: the number of processes.
        timeout: how many seconds each job may take.
        is_warm: whether to fork processes from one that has done a first analysis, which pays off
            if there are more jobs than processes.
    """
    context = _forkserver(_ANALYSED if is_warm else _IMPORTED)
    with _server_settings(), TemporaryDirectory(prefix="graphmem-") as folder:
        processes = _Processes(context, timeout, Path(folder))
        threads = ThreadPoolExecutor(count)
        try:
            yield lambda job: threads.submit(processes.perform, job)
        finally:
            processes.stop()
            threads.shutdown(cancel_futures=True)


@contextmanager
def warm_processes(count: int) -> Iterator[Executor]:
    """Run functions in `count` long-lived processes that have already analysed something."""
    context = _forkserver(_ANALYSED)
    with _server_settings():
        executor = ProcessPoolExecutor(
            count, context, signal.signal, (signal.SIGINT, signal.SIG_DFL)
        )
        try:
            yield executor
        finally:
            executor.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class _Limits:
    """A process's settings, apart from its job."""

    timeout: float | None
    last_lines: Path


class _Processes:
    """The running processes."""

    def __init__(self, context: Any, timeout: float | None, folder: Path) -> None:
        self._context = context
        self._timeout = timeout
        self._folder = folder
        self._lock = threading.Lock()
        self._running: set[Any] = set()
        self._started = 0
        self._is_over = False

    def perform(self, job: Job) -> Outcome:
        """Perform a job in its own process."""
        reader, writer = self._context.Pipe(duplex=False)
        with self._lock:
            if self._is_over:
                return failed(StoppedError())
            self._started += 1
            limits = _Limits(self._timeout, self._folder / str(self._started))
            process = self._context.Process(target=_answer, args=(job, limits, writer))
            process.start()
            self._running.add(process)
        writer.close()
        try:
            return self._answer_of(process, reader, job, limits)
        finally:
            self._end(process)

    def _answer_of(self, process: Any, reader: Connection, job: Job, limits: _Limits) -> Outcome:
        timeout = limits.timeout
        wait([reader, process.sentinel])  # torch is imported: the clock starts
        try:
            if reader.poll():
                reader.recv()
            ready = wait([reader, process.sentinel], timeout and timeout + _UNTIL_KILLED)
            if timeout is not None and not ready:
                return failed(took_longer(timeout, _last_line(limits.last_lines, job.root)))
            if reader.poll():
                outcome: Outcome = reader.recv()
                wait([process.sentinel], _UNTIL_ENDED)
                return outcome
        except EOFError:
            wait([process.sentinel], _UNTIL_ENDED)
        return failed(_ended(self._exit_code(process), _last_line(limits.last_lines, job.root)))

    def _exit_code(self, process: Any) -> int:
        with self._lock:  # two threads asking at once would each read half of the answer
            process.join()
            code: int = process.exitcode
        return code

    def _end(self, process: Any) -> None:
        with self._lock:
            process.kill()
            process.join()
            self._running.discard(process)

    def stop(self) -> None:
        """Kill all running processes, and start no more."""
        with self._lock:
            self._is_over = True
            for process in self._running:
                process.kill()


def _answer(job: Job, limits: _Limits, writer: Connection) -> None:
    """The process's main function: signal the start, and do the job."""
    import graphmem.trace  # noqa: F401 - takes long if not preloaded

    writer.send(None)
    if os.environ.get(_SAFE_PATH) == _OURS:
        del os.environ[_SAFE_PATH]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent handles it
    with limits.last_lines.open("wb", buffering=0) as lines:
        faulthandler.enable(lines)
        if limits.timeout is not None:
            faulthandler.dump_traceback_later(limits.timeout + _UNTIL_NOTED, file=lines)
        writer.send(perform(job, limits.timeout))
        faulthandler.cancel_dump_traceback_later()
        faulthandler.disable()


def _ended(exit_code: int, place: str) -> InputError:
    """The error for a process that ended without an answer."""
    if exit_code >= 0:
        return ProcessEndedError(exit_code)
    if -exit_code == signal.SIGKILL:
        return ProcessKilledError()
    at = f" at {place}" if place else ""
    return NativeCrashError(at, signal.Signals(-exit_code).name)


def _last_line(lines: Path, root: Path) -> str:
    """The program's last line, as faulthandler wrote it."""
    try:
        text = lines.read_text("utf-8", errors="replace")
    except OSError:
        return ""
    _, _, own = text.rpartition("thread 0x" if "Current thread" in text else "Thread 0x")
    section = own.partition("\n\n")[0]
    found = [each for each in _FRAME.finditer(section) if is_program(each["file"])]
    if not found:
        return ""
    own_frames = [each for each in found if origin_of(each["file"]) is Origin.USER]
    innermost = _short(found[0], root)
    if not own_frames or own_frames[0] is found[0]:
        return innermost
    return f"{innermost}, called from {_short(own_frames[0], root)}"


def _short(frame: re.Match[str], root: Path) -> str:
    file = Path(frame["file"])
    shown = file.relative_to(root) if file.is_relative_to(root) else file
    return f"{shown}:{frame['line']}"


@contextmanager
def _server_settings() -> Iterator[None]:
    """Give each process one thread: as many as cores would only slow the others down.

    The fork server imports no module of the working folder, such as a `queue.py` there.
    """
    wanted = {"OMP_NUM_THREADS": "1", _SAFE_PATH: _OURS}
    with environment({name: os.environ.get(name, value) for name, value in wanted.items()}):
        yield
