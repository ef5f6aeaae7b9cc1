"""Which tensors and ranks a collective rejects, with the errors of NCCL's group.

`ProcessGroupNCCL::_allgather_base`, `_reduce_scatter_base`, and `alltoall_base`, which checks only
splits (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp); `checkSplitSizes` (Utils.hpp in that
folder). test/distributed/test_c10d_nccl.py names the errors of the first two. A root or a peer
outside the group is an invalid argument (`ArgsCheck`, NCCL's misc/argcheck.cc).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.distributed import DistBackendError


def check_gathered(output: torch.Tensor, sent: torch.Tensor, size: int) -> None:
    """Raise an error unless the output holds what each of `size` ranks sends."""
    if output.dtype != sent.dtype:
        raise TypeError("output tensor must have the same type as input tensor")
    if output.numel() != sent.numel() * size:
        raise ValueError("output tensor size must be equal to world_size times input tensor size")


def check_scattered(output: torch.Tensor, sent: torch.Tensor, size: int) -> None:
    """Raise an error unless what is sent holds a part for each of `size` ranks."""
    if output.dtype != sent.dtype:
        raise TypeError("input tensor must be the same type as the output tensor.")
    if sent.numel() != output.numel() * size:
        raise ValueError("input tensor must be the same size as output size times world size")


def listed(splits: Iterable[Any] | None) -> list[int]:
    """Split sizes as C++ takes them: of a list, a tuple or a NumPy array."""
    return [] if splits is None else [int(each) for each in splits]


def check_split(tensor: torch.Tensor, parts: Sequence[int], size: int) -> None:
    """Raise an error unless a tensor has these parts, or equal ones, for each of `size` ranks."""
    if not parts and tensor.shape[0] % size:
        raise RuntimeError("Tensor's dim 0 does not divide equally across group size")
    if parts and len(parts) != size:
        raise RuntimeError("Number of tensor splits not equal to group size")
    if parts and sum(parts) != tensor.shape[0]:
        raise RuntimeError("Split sizes doesn't match total dim 0 size")


def are_of_one_rank(received: Sequence[int], given: Sequence[int]) -> bool:
    """Whether everything goes to one rank and as much comes from one, as in a ring.

    `permute_tensor`, torch/distributed/_functional_collectives.py: context parallelism rotates its
    keys and values so, which are as large on all ranks.
    """
    own, others = ([each for each in parts if each] for parts in (given, received))
    return len(own) == 1 and own == others


def check_backend(used: Sequence[Any], backends: Sequence[torch.device]) -> None:
    """Raise an error if tensors are on the CPU, for which the group has no backend.

    `ProcessGroup::getBackend`, torch/csrc/distributed/c10d/ProcessGroup.cpp
    """
    devices = {each.device.type for each in used if isinstance(each, torch.Tensor)}
    if "cpu" in devices and backends and torch.device("cpu") not in backends:
        raise RuntimeError("No backend type associated with device type cpu")


def check_rank(operation: str, rank: int, size: int) -> None:
    """Raise an error unless a root or a peer is in a group of `size` ranks."""
    if not 0 <= rank < size:
        raise DistBackendError(
            f"NCCL error: invalid argument: {operation}: invalid root {rank} "
            f"(root should be in the 0..{size} range)"
        )
