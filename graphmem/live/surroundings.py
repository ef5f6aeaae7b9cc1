"""Features that a script may use and a single process with a simulated card cannot provide.

(1) A process group has the ranks that the launcher announced, and this process is one of them
    (`graphmem.ranks`).
(2) A forked child, such as a data loader's worker, runs on the CPU alone; CUDA cannot be used after
    a fork either. The modules that it calls, as torchvision's transforms are, begin no iteration.
(3) Threads that the program starts are watched (`graphmem.trace.threads`).
(4) `share_memory_` ignores tensors on the card, as on a real one (torch/storage.py); sending them
    to another process, which has no card, is an error.
(5) `os._exit` ends the program as `sys.exit` does: the process has still to report it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from functools import cache
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

import torch
import torch.distributed
from torch._subclasses.fake_tensor import FakeTensor

from graphmem import ranks
from graphmem.live.messages import SentTensorError
from graphmem.live.mode import LiveMode
from graphmem.ranks.journal import Journal
from graphmem.trace.location import Location
from graphmem.trace.recorder import Recorder
from graphmem.values.known import KnownValues
from graphmem.virtual_device.devices import Devices
from graphmem.virtual_device.patching import Replacement


def replacements(
    recorder: Recorder, location: Location, known: KnownValues, devices: Devices, journal: Journal
) -> list[Replacement]:
    """The attributes to replace."""
    _watch_forks()
    found: list[Replacement] = [*_shared_memory(), (os, "_exit", _orderly_exit())]
    if torch.distributed.is_available():
        found += [
            (sys, "excepthook", sys.excepthook),  # restored: a process group sets its own
            *ranks.replacements(recorder, location, known, devices, journal),
        ]
    return found


def _orderly_exit() -> Callable[[int], NoReturn]:
    """`os._exit` that raises in the program; a forked child or another thread ends the process."""
    owner, leave = os.getpid(), os._exit

    def end(status: int) -> NoReturn:
        if os.getpid() != owner or threading.current_thread() is not threading.main_thread():
            leave(status)
        raise SystemExit(status)

    return end


def _shared_memory() -> list[Replacement]:
    share: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.share_memory_
    is_shared: Callable[[torch.Tensor], bool] = torch.Tensor.is_shared
    reducers: dict[type, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]

    def share_memory(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if isinstance(tensor, FakeTensor) else share(tensor)

    return [
        (torch.Tensor, "share_memory_", share_memory),
        (torch.Tensor, "is_shared", lambda tensor: tensor.is_cuda or is_shared(tensor)),
        (ForkingPickler, "_extra_reducers", {**reducers, FakeTensor: _refuse_sending}),
    ]


def _refuse_sending(tensor: FakeTensor) -> NoReturn:
    raise SentTensorError()


@cache
def _watch_forks() -> None:
    """Register the handler for forks once: it cannot be unregistered."""
    if hasattr(os, "register_at_fork"):  # Windows has no forks
        os.register_at_fork(after_in_child=_leave_modes)


def _leave_modes() -> None:
    stack = torch.utils._python_dispatch
    kept = []
    while torch._C._len_torch_dispatch_stack():
        mode = stack._pop_mode()
        if isinstance(mode, LiveMode):
            mode.leave_to_child()
        else:
            kept.append(mode)
    for mode in reversed(kept):
        stack._push_mode(mode)
