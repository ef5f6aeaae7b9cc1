"""Programs that start others: `graphmem run torchrun --nproc-per-node 8 train.py`.

Other processes have no virtual card, so a known launcher is refused. Another program may turn out
to start one (`started_processes`).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
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


def without_launcher(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """The command that runs what the launcher would, as far as its arguments tell.

    Args:
        arguments: the launcher's.
        environment: its variables, which tell a process that torchrun starts of how many it is one
            (`_start_workers`, torch/distributed/elastic/agent/server/local_elastic_agent.py).
    """
    is_program = (each == "-m" or each.endswith(".py") for each in arguments)
    start = next((place for place, found in enumerate(is_program) if found), len(arguments))
    program = shlex.join(arguments[start:]) or "SCRIPT"
    count = _count(arguments[:start]) or (environment or {}).get("LOCAL_WORLD_SIZE")
    ranks = ["--nproc-per-node", count] if count else []
    return " ".join(["graphmem run", *ranks, program])


def _count(options: Sequence[str]) -> str | None:
    words = [part for each in options for part in each.split("=", 1)]
    named = (value for word, value in pairwise(words) if word.replace("_", "-") in _RANKS)
    return next((value for value in named if value.isdigit()), None)
