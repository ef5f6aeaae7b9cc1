"""A bucket of gradients: one flat tensor, and a view of it for each parameter.

A view has the strides of its parameter where that is dense, else it is contiguous
(`initialize_bucket_views` in torch/csrc/distributed/c10d/reducer.cpp).
"""

from __future__ import annotations

from typing import Any

import torch

from graphmem.trace.gradients import is_non_overlapping_and_dense


class Bucket:
    """Some parameters, and where their gradients are reduced together.

    Attributes:
        indices: which parameters of the reducer.
        parameters: themselves.
        gradients: the flat tensor.
        views: of it, one for each parameter.
        pending: how many gradients have not come yet.
        work: of the reduction; a future where a communication hook does it.
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
        self.gradients = torch.empty(count, dtype=dtype or first.dtype, device=first.device)
        self.views = self.views_of(self.gradients)

    def views_of(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The parts of a flat tensor that belong to the parameters."""
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
    """What a communication hook is given, as `torch.distributed.GradBucket`."""

    def __init__(self, number: int, bucket: Bucket, is_last: bool) -> None:
        self._number = number
        self._bucket = bucket
        self._is_last = is_last
        self._buffer = bucket.gradients

    def index(self) -> int:
        """Which bucket it is."""
        return self._number

    def buffer(self) -> torch.Tensor:
        """The flat tensor."""
        return self._buffer

    def set_buffer(self, buffer: torch.Tensor) -> None:
        """Let another tensor be it."""
        self._buffer = buffer

    def gradients(self) -> list[torch.Tensor]:
        """The views."""
        return self._bucket.views_of(self._buffer)

    def parameters(self) -> list[torch.Tensor]:
        """The parameters."""
        return list(self._bucket.parameters)

    def is_last(self) -> bool:
        """Whether it is reduced last."""
        return self._is_last
