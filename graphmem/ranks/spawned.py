"""Ranks that a script starts with `torch.multiprocessing.spawn`; one of them runs in this process.

Another process would not have the virtual card. So the function is called in this one, with the
rank's number on its node; the others are assumed to do the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch.multiprocessing

from graphmem.ranks.error_messages import TooManyProcessesError
from graphmem.ranks.world import World
from graphmem.virtual_device.patching import Replacement


class _Ended:
    """The context of spawned processes, all of which have ended."""

    processes: Sequence[Any] = ()

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Return True: they have ended."""
        return True

    def pids(self) -> list[int]:
        """Return no process: they have ended."""
        return []


def replacements() -> list[Replacement]:
    """List the functions to replace."""
    return [
        (torch.multiprocessing, "start_processes", _start_processes),
        (sys.modules["torch.multiprocessing.spawn"], "start_processes", _start_processes),
    ]


def _start_processes(
    fn: Callable[..., object],
    args: Sequence[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    *settings: Any,
    **more: Any,
) -> _Ended | None:
    """Call the function as the rank that runs.

    Raises:
        InputError: the script starts more processes than the node has ranks.
    """
    world = World.here()
    if nprocs > world.per_node:
        raise TooManyProcessesError(nprocs, world.per_node)
    number = world.rank % world.per_node
    if number < nprocs:
        fn(number, *args)
    return None if join else _Ended()
