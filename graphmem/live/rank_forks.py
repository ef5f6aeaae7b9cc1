"""Processes of ranks, forked from a server that has imported what every rank needs.

Importing PyTorch takes as long as the first iterations of many a script; forked ranks share it.
`multiprocessing`'s own fork server marks its processes (`parent_process`, their name, a start
method that is set already), but a script is to find itself in a process like any other.

The server reads requests from its standard input and writes to a pipe which ranks have ended, each
a line of JSON. When its input ends, it ends the ranks that still run.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from threading import Condition, Thread
from types import TracebackType
from typing import IO, Self

import msgspec

_SERVER = "graphmem.cli.rank_server"
_PAUSE = 0.05
_PATIENCE = 10
_INPUT, _OUTPUT, _ERRORS = 0, 1, 2


class RankRequest(msgspec.Struct, frozen=True):
    """A rank to run.

    Attributes:
        rank: its number.
        arguments: those of graphmem.
        variables: its environment.
        stdout, stderr: files for its output.
    """

    rank: int
    arguments: list[str]
    variables: Mapping[str, str]
    stdout: str
    stderr: str


class _Ended(msgspec.Struct, frozen=True):
    rank: int
    exit_code: int


class RankServer:
    """The server, as its starter sees it; it ends with the context."""

    def __init__(self) -> None:
        self._exit_codes: dict[int, int] = {}
        self._has_ended = False
        self._news = Condition()

    def __enter__(self) -> Self:
        reader, writer = os.pipe()
        # In a group of its own, an interrupt from the keyboard reaches its starter alone.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", _SERVER, str(writer)],  # no module of this folder
            stdin=subprocess.PIPE,
            pass_fds=(writer,),
            process_group=0,
        )
        os.close(writer)
        self._listener = Thread(target=self._listen, args=(os.fdopen(reader, "rb"),), daemon=True)
        self._listener.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._input.close()
        try:
            self._process.wait(2 * _PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._listener.join(_PATIENCE)

    @property
    def pid(self) -> int:
        """The parent of all ranks."""
        return self._process.pid

    def start(self, request: RankRequest) -> None:
        """Start a rank, unless the context has ended."""
        if self._input.closed:
            return
        with suppress(BrokenPipeError):  # `wait` tells that the server has ended
            self._input.write(msgspec.json.encode(request) + b"\n")
            self._input.flush()

    def has_ended(self, rank: int) -> bool:
        """Whether a rank that was started has ended."""
        return self._has_ended or rank in self._exit_codes

    def wait(self, rank: int) -> int:
        """Wait for a rank, and return its exit code, which is negative after a signal."""
        with self._news:
            self._news.wait_for(lambda: self.has_ended(rank))
        if rank in self._exit_codes:
            return self._exit_codes[rank]
        return self._process.wait() or 1

    @property
    def _input(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _listen(self, endings: IO[bytes]) -> None:
        with endings:
            for line in endings:
                ended = msgspec.json.decode(line, type=_Ended)
                with self._news:
                    self._exit_codes[ended.rank] = ended.exit_code
                    self._news.notify_all()
        with self._news:
            self._has_ended = True
            self._news.notify_all()


# In the server ------------------------------------------------------------------------------------

_since: ContextVar[float | None] = ContextVar("since", default=None)


def served_since() -> float | None:
    """When the server of this process' rank began, in seconds since the epoch; None in others."""
    return _since.get()


def serve(endings: int) -> list[str] | None:
    """Fork a process for each request.

    Args:
        endings: the descriptor of the pipe.

    Returns:
        In a forked process graphmem's arguments; in the server, when all have ended, None.
    """
    _since.set(time.time())
    running: dict[int, int] = {}
    for request in _requests(running, endings):
        process = os.fork()
        if process == 0:
            os.close(endings)
            _become(request)
            return request.arguments
        running[process] = request.rank
    for each in running:
        os.kill(each, signal.SIGTERM)
    latest = time.monotonic() + _PATIENCE
    while running and time.monotonic() < latest:
        _report_ended(running, endings)
        time.sleep(_PAUSE)
    for each in running:
        os.kill(each, signal.SIGKILL)
    return None


def _requests(running: dict[int, int], endings: int) -> Iterator[RankRequest]:
    """The requests, until the input ends; between them, ranks that have ended are reported."""
    unread = b""
    while True:
        _report_ended(running, endings)
        if not select.select([_INPUT], [], [], _PAUSE)[0]:
            continue
        read = os.read(_INPUT, 1 << 16)
        if not read:
            return
        *lines, unread = (unread + read).split(b"\n")
        for line in lines:
            yield msgspec.json.decode(line, type=RankRequest)


def _report_ended(running: dict[int, int], endings: int) -> None:
    while running:
        process, status = os.waitpid(-1, os.WNOHANG)
        if not process:
            return
        ended = _Ended(running.pop(process), os.waitstatus_to_exitcode(status))
        with suppress(BrokenPipeError):  # the starter was killed
            os.write(endings, msgspec.json.encode(ended) + b"\n")


def _become(request: RankRequest) -> None:
    """Take a rank's streams and environment."""
    for path, flags, stream in (
        (os.devnull, os.O_RDONLY, _INPUT),
        (request.stdout, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _OUTPUT),
        (request.stderr, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _ERRORS),
    ):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, stream)
        os.close(opened)
    os.environ.clear()
    os.environ.update(request.variables)
