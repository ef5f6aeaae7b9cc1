"""Messages that one rank sends to another by value: pickled objects and their lengths.

Ranks of a job on this machine share a folder, with one file per message. A rank that waits for a
message from one that is not running starts that one in another process, which ends with it: a stage
of a pipeline asks the one before it for shapes (`PipelineStage._shape_inference`,
torch/distributed/pipelining/stage.py). Waiting for a message that never comes is an error.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from graphmem.errors import InputError
from graphmem.ranks import journal, orphans
from graphmem.ranks.error_messages import NeverSentError
from graphmem.ranks.world import World

COMMAND = "GRAPHMEM_RANK_COMMAND"
"""The variable with a rank's command line, as JSON; "RANK" stands for its number."""
FOLDER = "GRAPHMEM_RANK_MESSAGES"
"""The variable with the folder of the messages, where several ranks run."""
_PATIENCE = 600.0
_PAUSE = 0.05

Numbers = Sequence[int | float]


class Messages:
    """The messages of the rank that runs here."""

    def __init__(self) -> None:
        orphans.end_with_starter()
        self._stack = ExitStack()
        self._world = World.of(os.environ)  # programs may unset the variables
        self._folder: Path | None = None
        self._numbers: Counter[tuple[int, int]] = Counter()
        self._kept: list[tuple[str, str]] = []
        self._helpers: dict[int, subprocess.Popen[bytes]] = {}

    def send(self, source: int, destination: int, values: Numbers | None) -> None:
        """Send a message that another rank may ask for; None: its values are unknown."""
        message = self.next(source, destination), json.dumps(values)
        if self._folder is None and FOLDER not in os.environ:
            self._kept.append(message)
        else:
            _write(self._place(source) / message[0], message[1])

    def next(self, source: int, destination: int) -> str:
        """The name of the next message from one rank to another."""
        pair = source, destination
        self._numbers[pair] += 1
        return f"{source}-{destination}.{self._numbers[pair]}"

    def receive(self, name: str, source: int, destination: int) -> Numbers | None:
        """Wait for a message from another rank; None if its values are unknown.

        Raises:
            InputError: it never comes.
        """
        if COMMAND not in os.environ:
            return None
        folder = self._place(destination)
        path = folder / name
        waits = folder / f"{destination}.waits"
        _write(waits, name)
        until = time.monotonic() + _PATIENCE
        while not path.exists():
            if self._has_ended(source, folder) or _is_circle(folder, source, destination):
                time.sleep(_PAUSE)
                if not path.exists():
                    raise _never(source, destination)
            if time.monotonic() > until:
                raise _never(source, destination)
            time.sleep(_PAUSE)
        found: Numbers | None = json.loads(path.read_text())
        waits.unlink(missing_ok=True)
        if not _helped(destination, folder).exists():
            path.unlink()  # no other process runs this rank
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
                else self._stack.enter_context(TemporaryDirectory(prefix="graphmem-messages-"))
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
            command = [
                str(rank) if part == "RANK" else part for part in json.loads(os.environ[COMMAND])
            ]
            helper = subprocess.Popen(
                command,
                env=os.environ
                | {FOLDER: str(folder), "RANK": str(rank), journal.FOLDER: ""}
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


def _ended(rank: int, folder: Path) -> Path:
    return folder / f"{rank}.ended"


def _helped(rank: int, folder: Path) -> Path:
    """Exists if a rank has ever been run by a helper, which may read its messages again."""
    return folder / f"{rank}.helped"


def _is_circle(folder: Path, source: int, destination: int) -> bool:
    """Whether the other rank waits for something that this one has not sent.

    It stops waiting before it deletes what it has read, so it is asked again after that is missed.
    """
    awaited = _awaited(source, folder)
    is_unsent = awaited.startswith(f"{destination}-{source}.") and not (folder / awaited).exists()
    return is_unsent and _awaited(source, folder) == awaited


def _awaited(rank: int, folder: Path) -> str:
    try:
        return (folder / f"{rank}.waits").read_text()
    except FileNotFoundError:
        return ""


def _never(source: int, destination: int) -> InputError:
    return NeverSentError(destination, source)


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
