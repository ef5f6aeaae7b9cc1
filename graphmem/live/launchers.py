"""Programs that start others: `graphmem run torchrun --nproc-per-node 8 train.py`.

Other processes have no virtual card, so a known launcher is refused. Another program may turn out
to start one (`started_processes`).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from graphmem.errors import InputError

LAUNCHER = re.compile(r"accelerate|deepspeed|mpirun|python[0-9.]*|srun|torchrun|uv")
"""The names of launchers."""
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
            hint=f"name the script itself: {without_launcher(arguments)}",
        )


def refuse_launcher(script: str, arguments: Sequence[str], *, is_module: bool) -> None:
    """Refuse to run a launcher.

    Raises:
        LauncherError: it is one.
    """
    name = script if is_module else Path(script).name
    is_one = name in _MODULES if is_module else LAUNCHER.fullmatch(name) is not None
    if is_one:
        raise LauncherError(name, arguments)


def without_launcher(arguments: Sequence[str]) -> str:
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
