"""Programs that start others: `graphmem run torchrun --nproc-per-node 8 train.py`.

Other processes have no virtual card, so a known launcher is refused. Another program may turn out
to start one, as `axolotl train` does; its user is told at the end if nothing ran on the card.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path

from graphmem.errors import InputError

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


def what_it_started(commands: Sequence[Sequence[str]]) -> str | None:
    """A sentence on the first launcher among the commands that a program started, or None."""
    for launcher, *arguments in commands:
        name = Path(launcher).name
        if _LAUNCHER.fullmatch(name):
            return (
                f"it started {name}, in a process that has no virtual card; name what that runs: "
                f"{_without_launcher(arguments)}"
            )
    return None


_noting: list[list[list[str]]] = []
"""The lists that commands are noted in."""


@contextmanager
def noting_commands() -> Iterator[list[list[str]]]:
    """Note the commands of processes that the program starts."""
    _hook()
    commands: list[list[str]] = []
    _noting.append(commands)
    try:
        yield commands
    finally:
        _noting.pop()


@cache
def _hook() -> None:
    """Hear of processes from now on: an audit hook cannot be removed."""
    sys.addaudithook(_note)


def _note(event: str, args: tuple[object, ...]) -> None:
    if event == "subprocess.Popen" and _noting:
        _, command, *_ = args
        parts = [command] if isinstance(command, str | bytes | os.PathLike) else command
        _noting[-1].append([os.fsdecode(each) for each in parts])  # type: ignore[attr-defined]


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
