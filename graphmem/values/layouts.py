"""How tensors lie in their storages."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is an ordinary one on the host."""
    return tensor.layout is torch.strided and tensor.device.type == "cpu"


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether no two elements of a tensor share memory, if it has as many as its storage."""
    return all(
        stride or size == 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


def is_laid_out_as(real: torch.Tensor, nbytes: int, offset: int, stride: Sequence[int]) -> bool:
    """Whether a real tensor lies in memory of this size with this offset and these strides."""
    return (
        real.stride() == stride
        and real.storage_offset() == offset
        and real.untyped_storage().nbytes() == nbytes
        and not real.is_conj()
        and not real.is_neg()
    )
