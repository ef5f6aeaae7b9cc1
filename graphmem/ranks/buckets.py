"""A bucket of gradients: one flat tensor, and a view of it for each parameter.

A view has its parameter's strides if that is dense, otherwise it is contiguous
(`initialize_bucket_views` in torch/csrc/distributed/c10d/reducer.cpp).
"""

from __future__ import annotations

from typing import Any

import torch

from graphmem import constructors
from graphmem.trace.gradients import is_non_overlapping_and_dense


class Bucket:
    """Some parameters, and the flat tensor in which their gradients are reduced together.

    Attributes:
        indices: the parameters' indices in the reducer.
        parameters: the parameters.
        gradients: the flat tensor.
        views: views of the flat tensor, one for each parameter.
        pending: how many gradients are still missing.
        work: the reduction's work, or a future if a communication hook does it.
    """

    def __init__(
        self, indices: list[int], parameters: list[torch.Tensor], dtype: torch.dtype | None
    ) -> None:
        self.indices = indices
        self.parameters = parameters
        self.pending = len(parameters)
        self.work: Any = None
        first = parameters[0]
        count = sum(each.numel() for each in parameters)
        self.gradients = constructors.empty(count, dtype=dtype or first.dtype, device=first.device)
        self.views = self.views_of(self.gradients)

    def views_of(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Views of a flat tensor for the parameters."""
        offset = 0
        views = []
        for each in self.parameters:
            if is_non_overlapping_and_dense(each):
                views.append(flat.as_strided(each.shape, each.stride(), offset))
            else:
                views.append(flat.narrow(0, offset, each.numel()).view(each.shape))
            offset += each.numel()
        return views


class GradBucket:
    """The argument of a communication hook, like `torch.distributed.GradBucket`."""

    def __init__(self, number: int, bucket: Bucket, is_last: bool) -> None:
        self._number = number
        self._bucket = bucket
        self._is_last = is_last
        self._buffer = bucket.gradients

    def index(self) -> int:
        """The bucket's number."""
        return self._number

    def buffer(self) -> torch.Tensor:
        """The flat tensor."""
        return self._buffer

    def set_buffer(self, buffer: torch.Tensor) -> None:
        """Replace the flat tensor."""
        self._buffer = buffer

    def gradients(self) -> list[torch.Tensor]:
        """The gradients, as views of the flat tensor."""
        return self._bucket.views_of(self._buffer)

    def parameters(self) -> list[torch.Tensor]:
        """The parameters."""
        return list(self._bucket.parameters)

    def is_last(self) -> bool:
        """Whether the bucket is reduced last."""
        return self._is_last
