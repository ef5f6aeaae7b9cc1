"""Ranks that a script starts with `torch.multiprocessing.spawn`; one of them runs in this process.

Another process would not have the virtual card. So the function is called in this one, with the
rank's number on its node; the others are assumed to do the same. What would end with the other
process ends with the function: its process group, variables, memory on the card, and the peak.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing

from graphmem.ranks.error_messages import TooManyProcessesError
from graphmem.ranks.world import World
from graphmem.virtual_device.devices import Devices
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


def replacements(devices: Devices) -> list[Replacement]:
    """List the functions to replace; `devices` are the cards of this rank."""
    start = partial(_start_processes, devices)
    return [
        (torch.multiprocessing, "start_processes", start),
        (sys.modules["torch.multiprocessing.spawn"], "start_processes", start),
    ]


def _start_processes(
    devices: Devices,
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
        with _like_a_process(devices):
            fn(number, *args)
    return None if join else _Ended()


@contextmanager
def _like_a_process(devices: Devices) -> Iterator[None]:
    """End, with the context, what a process takes with it when it ends."""
    variables = dict(os.environ)
    with devices.afresh():
        yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    os.environ.clear()
    os.environ.update(variables)
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch._C._cuda_emptyCache()
    torch._C._cuda_resetPeakMemoryStats(devices.own)
