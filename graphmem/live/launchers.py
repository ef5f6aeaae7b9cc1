"""Programs that start others: `graphmem run torchrun --nproc-per-node 8 train.py`.

Other processes have no virtual card, so a known launcher is refused. Another program may turn out
to start one, as `axolotl train` does, or to call a function of its own in another process, as
I-JEPA's main.py does; its user is told at the end if nothing ran on the card.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from itertools import pairwise
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

from graphmem.errors import InputError
from graphmem.frames import is_program, short_path
from graphmem.virtual_device.patching import replaced

_LAUNCHER = re.compile(r"accelerate|deepspeed|mpirun|python[0-9.]*|srun|torchrun|uv")
_MODULES = frozenset(
    {
        "accelerate.commands.accelerate_cli",
        "accelerate.commands.launch",
        "deepspeed.launcher.runner",
        "torch.distributed.launch",
        "torch.distributed.run",
    }
)
_RANKS = ("--nproc-per-node", "--num-processes", "--num-gpus", "-np", "-n")


class LauncherError(InputError):
    """The script or module would run another one, in processes that have no virtual card."""

    def __init__(self, launcher: str, arguments: Sequence[str]) -> None:
        super().__init__(
            f"{launcher} starts other processes, which graphmem does not follow",
            hint=f"name the script itself: {_without_launcher(arguments)}",
        )


def refuse_launcher(script: str, arguments: Sequence[str], *, is_module: bool) -> None:
    """Refuse to run a launcher.

    Raises:
        LauncherError: it is one.
    """
    name = script if is_module else Path(script).name
    is_one = name in _MODULES if is_module else _LAUNCHER.fullmatch(name) is not None
    if is_one:
        raise LauncherError(name, arguments)


class Started(NamedTuple):
    """What a program started in other processes.

    Attributes:
        commands: the commands, with their arguments.
        functions: those that it calls in processes of `multiprocessing`.
    """

    commands: list[list[str]]
    functions: list[FunctionType]


def what_it_started(started: Started) -> str | None:
    """A sentence on the first launcher or function of its own that a program started, or None."""
    for launcher, *arguments in started.commands:
        name = Path(launcher).name
        if _LAUNCHER.fullmatch(name):
            return (
                f"it started {name}, in a process that has no virtual card; name what that runs: "
                f"{_without_launcher(arguments)}"
            )
    for function in started.functions:
        code = function.__code__
        if is_program(code.co_filename):
            return (
                f"it called {function.__name__} ({short_path(code.co_filename)}:"
                f"{code.co_firstlineno}) in another process, which has no virtual card; "
                "run a script that calls it in its own process"
            )
    return None


_noting: list[Started] = []
"""Where it is noted what the programs that run start."""


@contextmanager
def noting_processes() -> Iterator[Started]:
    """Note the processes that the program starts."""
    _hook()
    started = Started([], [])
    _noting.append(started)
    try:
        with replaced([(BaseProcess, "start", _noting_start(started))]):
            yield started
    finally:
        _noting.pop()


def _noting_start(started: Started) -> Callable[[Any], None]:
    start = BaseProcess.start

    @wraps(start)
    def note_and_start(process: Any) -> None:
        function = getattr(process, "_target", None)
        if isinstance(function, FunctionType):
            started.functions.append(function)
        start(process)

    return note_and_start


@cache
def _hook() -> None:
    """Hear of processes from now on: an audit hook cannot be removed."""
    sys.addaudithook(_note)


def _note(event: str, args: tuple[object, ...]) -> None:
    if event == "subprocess.Popen" and _noting:
        _, command, *_ = args
        parts = [command] if isinstance(command, str | bytes | os.PathLike) else command
        _noting[-1].commands.append([os.fsdecode(each) for each in parts])  # type: ignore[attr-defined]


def _without_launcher(arguments: Sequence[str]) -> str:
    """The command that runs what the launcher would, as far as its arguments tell."""
    is_program = (each == "-m" or each.endswith(".py") for each in arguments)
    start = next((place for place, found in enumerate(is_program) if found), len(arguments))
    program = shlex.join(arguments[start:]) or "SCRIPT"
    return " ".join(["graphmem run", *_ranks(arguments[:start]), program])


def _ranks(options: Sequence[str]) -> list[str]:
    words = [part for each in options for part in each.split("=", 1)]
    for word, value in pairwise(words):
        if word.replace("_", "-") in _RANKS and value.isdigit():
            return ["--nproc-per-node", value]
    return []
