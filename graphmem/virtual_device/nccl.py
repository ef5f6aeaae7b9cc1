"""The presence of NCCL, for programs that check; a CPU build of PyTorch lacks it.

Programs ask whether it is available and for its version: torchtune before it trains in bfloat16,
DistributedDataParallel before it accepts a bfloat16 hook (`_check_comm_hook`,
torch/nn/parallel/distributed.py). A group that a program makes of NCCL itself, as torchft does, is
refused; those of `init_process_group` and `new_group` are not NCCL's (graphmem/ranks/init.py).
"""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
import torch.distributed

from graphmem.virtual_device.messages import OwnNcclGroupError
from graphmem.virtual_device.patching import Replacement

_TIMEOUT = timedelta(minutes=10)  # kProcessGroupNCCLDefaultTimeout (ProcessGroupNCCL.hpp)

# What the wheel of a release on PyPI requires (`nvidia-nccl-cu12`, `nvidia-nccl-cu13`).
_NCCL_OF_RELEASE: tuple[tuple[tuple[int, int], tuple[int, int, int]], ...] = (
    ((2, 14), (2, 30, 7)),
    ((2, 12), (2, 29, 7)),
    ((2, 11), (2, 28, 9)),
    ((0, 0), (2, 27, 5)),
)


def _refuse(group: Any, *args: Any, **options: Any) -> NoReturn:
    """In place of the constructor."""
    raise OwnNcclGroupError()


class ProcessGroupNCCL:
    """A class without instances: no group is an NCCL group."""

    class Options:
        """Settings of a communicator; ignored."""

        def __init__(self, is_high_priority_stream: bool = False) -> None:
            self.is_high_priority_stream = is_high_priority_stream
            self.config = SimpleNamespace()

    __init__ = _refuse


def nccl_replacements(torch_release: tuple[int, int]) -> list[Replacement]:
    """List the attributes to replace: in a CUDA build the constructor, else also what it lacks."""
    if not torch.distributed.is_available():
        return []
    from torch.distributed import distributed_c10d

    if torch.distributed.is_nccl_available():
        return [(distributed_c10d.ProcessGroupNCCL, "__init__", _refuse)]

    found = (version for since, version in _NCCL_OF_RELEASE if torch_release >= since)
    major, minor, patch = next(found)
    return [
        (distributed_c10d, "_NCCL_AVAILABLE", True),
        (distributed_c10d, "ProcessGroupNCCL", ProcessGroupNCCL),
        (torch.distributed, "ProcessGroupNCCL", ProcessGroupNCCL),
        (distributed_c10d, "default_pg_nccl_timeout", _TIMEOUT),
        (torch._C, "_nccl_version", lambda: major << 32 | minor << 16 | patch),
        (torch._C, "_nccl_version_suffix", lambda: b""),
    ]
