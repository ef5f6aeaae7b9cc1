"""Messages that one rank sends to another by value: pickled objects and their lengths.

Ranks of a job on this machine share a folder, with one file per message. A rank that waits for a
message from one that is not running starts that one in another process, which ends with it: a stage
of a pipeline asks the one before it for shapes (`PipelineStage._shape_inference`,
torch/distributed/pipelining/stage.py). Waiting for a message that never comes is an error: its
sender has ended, or waits itself, in a circle. A sender that runs is waited for. A circle is one of
main threads: while another thread waits, the main thread may send.

Some ranks run beside this one: those of `--rank all`, the one that started this one, and those that
this one started. What a rank leaves on a board can be read by each of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from graphmem.plain_text import Console
from graphmem.ranks import journal, orphans
from graphmem.ranks.error_messages import NeverSentError
from graphmem.ranks.world import World

COMMAND = "GRAPHMEM_RANK_COMMAND"
"""The variable with a rank's command line, as JSON; "RANK" stands for its number."""
FOLDER = "GRAPHMEM_RANK_MESSAGES"
"""The variable with the folder of the messages, where several ranks run."""
BESIDE = "GRAPHMEM_RANKS_BESIDE"
"""The variable with the numbers of the ranks that run beside this one, as in "0,1"."""
_LONG = 60.0
"""After as many seconds of waiting the user is told."""
_PAUSE = 0.05

Numbers = Sequence[int | float]


class _EndedError(Exception):
    """A rank ended, or waits in turn, before it sent what another waits for."""


class Messages:
    """The messages of the rank that runs here."""

    def __init__(self) -> None:
        orphans.end_with_starter()
        self._stack = ExitStack()
        self._world = World.of(os.environ)  # programs may unset the variables
        self._rank = self._world.rank if self._world is not None else 0
        self._folder: Path | None = None
        self._numbers: Counter[tuple[int, int | str]] = Counter()
        self._beside = set(numbers_in(os.environ.get(BESIDE, "")))
        self._begun_beside = frozenset(self._beside)
        self._kept: list[tuple[str, str]] = []
        self._helpers: dict[int, subprocess.Popen[bytes]] = {}

    def send(self, source: int, destination: int | str, values: Numbers | None) -> None:
        """Send a message that other ranks may ask for.

        Args:
            source: this rank.
            destination: the other rank, in a group, or a board that ranks beside this one read.
            values: the message; None: they are unknown.
        """
        message = self.next(source, destination), json.dumps(values)
        if self._folder is None and FOLDER not in os.environ:
            self._kept.append(message)
        else:
            _write(self._place(source) / message[0], message[1])

    def next(self, source: int, destination: int | str) -> str:
        """The name of the next message from one rank to another, or to a board."""
        pair = source, destination
        self._numbers[pair] += 1
        return f"{source}-{destination}.{self._numbers[pair]}"

    def read(self, name: str, source: int, destination: int) -> Numbers | None:
        """Wait for what another rank leaves on a board.

        Returns:
            None if its values are unknown, it does not run beside this one, or it ends first.
        """
        if source not in self._beside:
            return None
        try:
            return self._await(name, source, destination)
        except _EndedError:
            return None

    def are_beside(self, ranks: Iterable[int]) -> bool:
        """Whether all of some ranks run beside this one, or are this one."""
        return self._beside.issuperset({*ranks} - {self._rank})

    def began_beside(self, ranks: Iterable[int]) -> bool:
        """Whether all of some ranks ran beside this one from its begin on, or are this one."""
        return self._begun_beside.issuperset({*ranks} - {self._rank})

    def receive(self, name: str, source: int, destination: int) -> Numbers | None:
        """Wait for a message from another rank; None if its values are unknown.

        Raises:
            InputError: it never comes.
        """
        if COMMAND not in os.environ:
            return None
        try:
            found = self._await(name, source, destination)
        except _EndedError:
            raise NeverSentError(destination, source) from None
        folder = self._place(destination)
        if not _helped(destination, folder).exists():
            (folder / name).unlink()  # no other process runs this rank
        return found

    def _await(self, name: str, source: int, destination: int) -> Numbers | None:
        folder = self._place(destination)
        path, waits = folder / name, _waits(destination, folder)
        is_main = threading.current_thread() is threading.main_thread()
        if is_main:
            _write(waits, name)
        begun, is_told = time.monotonic(), False
        while not path.exists():
            is_stuck = is_main and _is_circle(folder, source, destination)
            if self._has_ended(source, folder) or is_stuck:
                time.sleep(_PAUSE)
                if not path.exists():
                    if is_main:
                        waits.unlink(missing_ok=True)
                    raise _EndedError
            if not is_told and time.monotonic() - begun > _LONG:
                _tell(f"rank {destination} waits for rank {source}, which still runs")
                is_told = True
            time.sleep(_PAUSE)
        found: Numbers | None = json.loads(path.read_text())
        if is_main:
            waits.unlink(missing_ok=True)
        return found

    def close(self) -> None:
        """End the processes started here, and mark this rank as ended."""
        if self._folder is not None and self._world is not None and self._folder.is_dir():
            rank = self._world.rank
            if _process_of(rank, self._folder) == str(os.getpid()):
                mark_ended(rank, self._folder)
        self._stack.close()

    def _place(self, rank: int) -> Path:
        """The folder of the messages, in which this rank is marked as running."""
        if self._folder is None:
            shared = os.environ.get(FOLDER)
            self._folder = Path(
                shared
                if shared is not None
                else self._stack.enter_context(
                    TemporaryDirectory(prefix="graphmem-messages-", ignore_cleanup_errors=True)
                )
            )
            if _claim(rank, self._folder):
                mark_started(rank, self._folder, os.getpid())
            for name, text in self._kept:
                _write(self._folder / name, text)
            self._kept.clear()
        return self._folder

    def _has_ended(self, rank: int, folder: Path) -> bool:
        """Whether a rank has ended; one that is not running is started."""
        if _claim(rank, folder):
            _helped(rank, folder).touch()
            self._beside.add(rank)
            command = [
                str(rank) if part == "RANK" else part for part in json.loads(os.environ[COMMAND])
            ]
            helper = subprocess.Popen(
                command,
                env=os.environ
                | {
                    FOLDER: str(folder),
                    "RANK": str(rank),
                    journal.FOLDER: "",
                    BESIDE: str(self._rank),
                }
                | orphans.variables(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            mark_started(rank, folder, helper.pid)
            self._helpers[rank] = helper
            self._stack.callback(_end, rank, folder, helper)
        if _ended(rank, folder).exists():
            return True
        process, helper_here = _process_of(rank, folder), self._helpers.get(rank)
        if helper_here is not None and process == str(helper_here.pid):
            return helper_here.poll() is not None
        return orphans.is_gone(process)


def _claim(rank: int, folder: Path) -> bool:
    """Keep others from starting a rank; returns whether it was not started before."""
    try:
        (folder / f"{rank}.started").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def mark_started(rank: int, folder: Path, process: int | None = None) -> None:
    """Tell others which process runs a rank; None: one that somebody else watches."""
    _ended(rank, folder).unlink(missing_ok=True)  # a helper may have run it before
    _write(folder / f"{rank}.started", str(process))


def _process_of(rank: int, folder: Path) -> str | None:
    started = folder / f"{rank}.started"
    return started.read_text() if started.exists() else None


def mark_ended(rank: int, folder: Path) -> None:
    """Tell others that a rank sends nothing more."""
    _write(_ended(rank, folder), "")


def is_waiting(rank: int, folder: Path) -> bool:
    """Whether a rank waits for a message."""
    return _waits(rank, folder).exists()


def _waits(rank: int, folder: Path) -> Path:
    return folder / f"{rank}.waits"


def _ended(rank: int, folder: Path) -> Path:
    return folder / f"{rank}.ended"


def _helped(rank: int, folder: Path) -> Path:
    """Exists if a rank has ever been run by a helper, which may read its messages again."""
    return folder / f"{rank}.helped"


def _is_circle(folder: Path, source: int, destination: int) -> bool:
    """Whether another rank waits for one that waits for another, and so on back to this one.

    A rank stops waiting before it deletes what it has read, so each is asked again.
    """
    chain = _chain(folder, source, destination)
    return chain is not None and _chain(folder, source, destination) == chain


def _chain(folder: Path, source: int, destination: int) -> list[str] | None:
    """The messages that ranks wait for, from one to the next; None if one of them need not wait."""
    chain: list[str] = []
    waiting, rank = {destination}, source
    while rank not in waiting:
        waiting.add(rank)
        awaited = _awaited(rank, folder)
        if not awaited or (folder / awaited).exists():
            return None
        chain.append(awaited)
        rank = int(awaited.partition("-")[0])
    return chain


def _awaited(rank: int, folder: Path) -> str:
    try:
        return _waits(rank, folder).read_text()
    except FileNotFoundError:
        return ""


def _tell(line: str) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"graphmem: {line}", markup=False)


def numbers_in(text: str) -> list[int]:
    """The numbers in a text like "0,1"."""
    return [int(each) for each in text.split(",") if each]


def _write(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    draft.write_text(text)
    draft.replace(path)


def _end(rank: int, folder: Path, process: subprocess.Popen[bytes]) -> None:
    """End a process started here; others may start the rank again unless it reached its end."""
    if _process_of(rank, folder) == str(process.pid) and not _ended(rank, folder).exists():
        (folder / f"{rank}.started").unlink()
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
