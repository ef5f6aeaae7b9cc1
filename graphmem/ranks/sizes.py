"""Which tensors a collective rejects, with the errors of NCCL's group.

`ProcessGroupNCCL::_allgather_base` and `_reduce_scatter_base`
(torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp); test/distributed/test_c10d_nccl.py names both.
"""

from __future__ import annotations

import torch


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
