"""What a script may ask of its surroundings that one process with one pretended card has not.

(1) `init_process_group` makes a group of one process, whose collectives do nothing; more processes,
    and `DistributedDataParallel`, are errors that say so.
(2) A forked child (a worker of a data loader) runs on the CPU alone, as a card's cannot be used
    after a fork either.
(3) Threads that the program starts are watched (`graphmem.trace.threads`).
(4) `share_memory_` does nothing to tensors on the card, as on a real one (torch/storage.py); to
    send them to another process, which has no card, is an error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

import torch
import torch.distributed
from torch._subclasses.fake_tensor import FakeTensor

from graphmem.errors import InputError
from graphmem.live.mode import LiveMode
from graphmem.virtual_gpu.patching import Replacement

_forking: list[bool] = []


def replacements() -> list[Replacement]:
    """The attributes to replace."""
    _watch_forks()
    found: list[Replacement] = _shared_memory()
    if torch.distributed.is_available():
        found += [
            (torch.distributed, "init_process_group", _init_process_group),
            (sys, "excepthook", sys.excepthook),  # put back: a process group sets its own
            (torch.nn.parallel.DistributedDataParallel, "__init__", _refuse_ddp),
        ]
    return found


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
    raise InputError(
        "the script sends a tensor on the card to another process, and graphmem run is one",
        hint="let it train in its own process, or send tensors of the CPU",
    )


def _init_process_group(backend: Any = None, *args: Any, **options: Any) -> None:
    size = int(os.environ.get("WORLD_SIZE", options.get("world_size", 1)))
    if size > 1:
        raise InputError(
            f"the script wants {size} processes, and graphmem run is one",
            hint="run it without its launcher: unset RANK, LOCAL_RANK and WORLD_SIZE",
        )
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.distributed_c10d.init_process_group(
        "fake", store=FakeStore(), rank=0, world_size=1
    )


def _refuse_ddp(*args: Any, **options: Any) -> None:
    raise InputError(
        "DistributedDataParallel does not work under graphmem run",
        hint="run the script as one process without it: unset RANK, LOCAL_RANK and WORLD_SIZE",
    )


def _watch_forks() -> None:
    """What is registered for forks stays registered, so it is done once."""
    if not _forking:
        _forking.append(True)
        os.register_at_fork(after_in_child=_leave_modes)


def _leave_modes() -> None:
    stack = torch.utils._python_dispatch
    kept = []
    while torch._C._len_torch_dispatch_stack():
        mode = stack._pop_mode()
        if not isinstance(mode, LiveMode):
            kept.append(mode)
    for mode in reversed(kept):
        stack._push_mode(mode)
