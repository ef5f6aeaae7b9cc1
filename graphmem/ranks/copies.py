"""Copies of this rank's tensors, in place of what other ranks send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import ReduceOp

from graphmem.ranks.mail import Mail

_READ_BYTES = 1 << 20


def is_read(tensor: torch.Tensor) -> bool:
    """Whether programs may read a tensor: on the card, integers of at most 1 MiB."""
    is_short_integer = not tensor.is_floating_point() and tensor.nbytes <= _READ_BYTES
    return tensor.device.type == "cpu" or is_short_integer


def copy(mail: Mail, output: torch.Tensor, sent: torch.Tensor) -> None:
    """Copy a tensor into one of as many elements; of others only what is known of them."""
    if is_read(output) and output.numel() == sent.numel():
        with torch.no_grad():
            output.detach().copy_(sent.detach().view_as(output))
    else:
        mail.give(output, [sent] if output.numel() == sent.numel() else [])


def copy_to_each(mail: Mail, outputs: Sequence[torch.Tensor], sent: torch.Tensor) -> None:
    """Copy a tensor into each of a list.

    Values are known of whole storages. `all_gather_object` and `gather_object` gather into parts of
    one tensor, which is filled first so that each part can be written by itself.
    """
    if not outputs:
        return
    whole = outputs[0]._base
    parts = sum(each.numel() for each in outputs if each._base is whole)
    if whole is not None and whole.numel() == parts and all(map(is_read, outputs)):
        with torch.no_grad():
            whole.detach().zero_()
    for each in outputs:
        copy(mail, each, sent)


def combine_copies(tensor: torch.Tensor, operation: Any, count: int) -> None:
    """Reduce a tensor with so many copies of itself, in place.

    An average, a minimum or a maximum is the tensor itself. NCCL takes a sum of booleans for a
    maximum (`ncclOp` in torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp).
    """
    with torch.no_grad():
        if operation == ReduceOp.SUM and tensor.dtype is not torch.bool:
            tensor.mul_(count)
        elif operation == ReduceOp.PRODUCT and tensor.dtype is not torch.bool:
            tensor.pow_(count)
        elif operation == ReduceOp.BXOR and count % 2 == 0:
            tensor.zero_()


def flat_like(tensors: list[torch.Tensor]) -> torch.Tensor | None:
    """The one tensor that NCCL uses for a list of equal ones (`newLikeFlat`)."""
    first = tensors[0]
    if first.device.type != "cuda" or any(each.shape != first.shape for each in tensors):
        return None
    return first.new_empty((len(tensors), *first.shape))
