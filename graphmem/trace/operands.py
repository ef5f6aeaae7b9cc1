"""The tensor operands of an operation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch


def tensors_of(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among an operation's arguments."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from tensors_of(value)


def span_of(tensor: torch.Tensor) -> int:
    """How many elements of its storage a tensor spans, from its first to its last."""
    if not tensor.numel():
        return 0
    dims = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in dims)
