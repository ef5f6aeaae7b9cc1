"""The C++ functions that DistributedDataParallel calls, apart from its reducer.

When it is constructed it compares the parameters of all ranks: their number, gathered into one
tensor per rank, and the sizes and strides of each, which rank 0 broadcasts
(`verify_params_across_processes` in torch/csrc/distributed/c10d/reducer.cpp;
fixtures/cuda/ranks/ddp.rank0 shows the bytes).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed
from torch._C import _distributed_c10d as c10d
from torch._prims_common import make_contiguous_strides_for

from graphmem import constructors
from graphmem.ranks.noted import NotedGroup
from graphmem.ranks.reducer import Reducer
from graphmem.trace.recorder import Recorder
from graphmem.units import counted
from graphmem.virtual_device.patching import Replacement


def replacements(recorder: Recorder) -> list[Replacement]:
    """List the attributes to replace."""
    return [
        (torch.distributed, "Reducer", partial(Reducer, recorder)),
        (torch.distributed, "Logger", SilentLogger),
        (torch.distributed, "_verify_params_across_processes", _compare_parameters),
        (torch.distributed, "_register_comm_hook", _register_comm_hook),
        (torch.distributed, "_register_builtin_comm_hook", _register_builtin_comm_hook),
    ]


class SilentLogger:
    """Replaces `torch.distributed.Logger` and logs nothing."""

    def __init__(self, reducer: Reducer) -> None:
        pass

    def _get_ddp_logging_data(self) -> Any:
        return SimpleNamespace(strs_map={}, ints_map={})

    def __getattr__(self, name: str) -> Any:
        return _ignore


def _ignore(*args: Any, **options: Any) -> None:
    pass


def _compare_parameters(group: Any, parameters: Sequence[torch.Tensor], logger: Any = None) -> None:
    if isinstance(group, NotedGroup):
        _note_parameters(group, parameters)
    device = parameters[0].device
    count = constructors.tensor([len(parameters)], device=device)
    gathered = [torch.empty_like(count) for _ in range(group.size())]
    group.allgather([gathered], [count], c10d.AllgatherOptions()).wait()
    shapes = [number for each in parameters for number in (*each.shape, *each.stride())]
    sent = constructors.tensor(shapes, dtype=torch.int64).to(device)
    group.broadcast([sent], c10d.BroadcastOptions()).wait()
    del sent
    while gathered:  # first to last, as a C++ vector frees its elements
        del gathered[0]


def _note_parameters(group: NotedGroup, parameters: Sequence[torch.Tensor]) -> None:
    group.note("DistributedDataParallel", counted(len(parameters), "parameter"))
    for number, each in enumerate(parameters):
        is_usual = each.stride() == make_contiguous_strides_for(each.shape)
        strides = "" if is_usual else f" with strides {list(each.stride())}"
        group.note("DistributedDataParallel", f"parameter {number}, {list(each.shape)}{strides}")


def _register_comm_hook(reducer: Reducer, state: Any, hook: Any) -> None:
    reducer._comm_hook = lambda bucket: hook(state, bucket)


def _register_builtin_comm_hook(reducer: Reducer, kind: Any) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    hooks = {
        "ALLREDUCE": default_hooks.allreduce_hook,
        "FP16_COMPRESS": default_hooks.fp16_compress_hook,
    }
    _register_comm_hook(reducer, None, hooks[kind.name])
