"""Scale the batch of a training step: the first dimension of its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from graphmem.changes.messages import (
    BatchBelowOneError,
    BatchOfNoTensorsError,
    BatchOutOfReachError,
    VariedBatchOutOfReachError,
)
from graphmem.training_step import TrainingStep


def scale_batch(step: TrainingStep, factor: float) -> Any:
    """The inputs of a step, with the batch scaled.

    The batch is the first dimension of the first tensor; every tensor whose first dimension has the
    same size is repeated or cut to the scaled size.

    Raises:
        InputError: the step makes its own inputs, or the scaled batch is empty.
    """
    if step.step is not None:
        raise BatchOutOfReachError()
    return _with_batch(step.inputs, lambda old: _times(old, factor))


def resize_batch(step: TrainingStep, size: int) -> Any:
    """The inputs of a step with a batch of that size, as defined in `scale_batch`.

    Raises:
        InputError: the step makes its own inputs.
    """
    if step.step is not None:
        raise VariedBatchOutOfReachError()
    return _with_batch(step.inputs, lambda old: size)


def batch_of(step: TrainingStep) -> int | None:
    """The batch that `resize_batch` would change; None without one, or if a function makes it."""
    from graphmem.trace.loop import tensors_in

    if step.step is not None or callable(step.inputs):
        return None
    first = next((tensor for tensor in tensors_in(step.inputs) if tensor.dim()), None)
    return None if first is None else first.shape[0]


def _times(old: int, factor: float) -> int:
    new = round(old * factor)
    if new < 1:
        raise BatchBelowOneError(old, factor)
    return new


def _with_batch(inputs: Any, new_size: Callable[[int], int]) -> Any:
    if callable(inputs):
        return lambda: _resized_all(inputs(), new_size)
    return _resized_all(inputs, new_size)


def _resized_all(inputs: Any, new_size: Callable[[int], int]) -> Any:
    from graphmem.trace.loop import tensors_in

    first = next((tensor for tensor in tensors_in(inputs) if tensor.dim()), None)
    if first is None:
        raise BatchOfNoTensorsError()
    old = first.shape[0]
    new = new_size(old)
    return mapped(inputs, lambda tensor: _resized(tensor, old, new))


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Apply a change to every tensor in nested dicts, tuples and lists."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped(item, change) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(mapped(item, change) for item in value)
    return value


def _resized(tensor: torch.Tensor, old: int, new: int) -> torch.Tensor:
    if not tensor.dim() or tensor.shape[0] != old:
        return tensor
    rows = torch.arange(new, device=tensor.device) % old
    return tensor.detach()[rows].requires_grad_(tensor.requires_grad)
