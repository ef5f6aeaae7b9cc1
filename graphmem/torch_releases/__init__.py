"""Which releases of PyTorch graphmem runs on, and what differs between them."""

from __future__ import annotations

from functools import cache

from graphmem.torch_releases.differences import (
    COPIES_TO_DEVICES_KEPT_OFF,
    INTRUSIVE_NODES,
    NO_OP_CUDA_GUARD,
    PACKED_TENSORS_CAN_BE_READ,
    Difference,
    Release,
)

__all__ = [
    "COPIES_TO_DEVICES_KEPT_OFF",
    "INTRUSIVE_NODES",
    "NO_OP_CUDA_GUARD",
    "PACKED_TENSORS_CAN_BE_READ",
    "Difference",
    "Release",
    "installed_release",
]


@cache
def installed_release() -> Release:
    """The release that is installed, such as (2, 13)."""
    import torch

    from graphmem.gpus import parse_release

    return parse_release(torch.__version__)
