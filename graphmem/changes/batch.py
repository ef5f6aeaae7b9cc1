"""Scale the batch of a training step: the first dimension of its inputs and labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from graphmem.changes.messages import (
    BatchBelowOneError,
    BatchOfNoTensorsError,
    BatchOutOfReachError,
    VariedBatchOutOfReachError,
)
from graphmem.training_step import TrainingStep

Resize = Callable[[torch.Tensor], torch.Tensor]


def scale_batch(step: TrainingStep, factor: float) -> TrainingStep:
    """A step with its batch scaled.

    The batch is the first dimension of the first input; every input whose first dimension has the
    same size is repeated or cut to the scaled size, and so is every tensor that the loss closes
    over, such as labels, wherever `ClosedOver` finds it.

    Raises:
        InputError: the step makes its own inputs, or the scaled batch is empty.
    """
    if step.step is not None:
        raise BatchOutOfReachError()
    return _with_batch(step, lambda old: _times(old, factor))


def resize_batch(step: TrainingStep, size: int) -> TrainingStep:
    """A step with a batch of that size, as defined in `scale_batch`.

    Raises:
        InputError: the step makes its own inputs.
    """
    if step.step is not None:
        raise VariedBatchOutOfReachError()
    return _with_batch(step, lambda old: size)


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


def _with_batch(step: TrainingStep, new_size: Callable[[int], int]) -> TrainingStep:
    from graphmem.trace.closed_over import Relabelled

    make = step.inputs
    if callable(make):
        return replace(step, inputs=lambda: mapped(inputs := make(), _resizer(inputs, new_size)))
    resize = _resizer(make, new_size)
    loss = None
    if step.loss is not None:
        loss = Relabelled(step.loss, lambda labels: mapped(labels, resize))
    return replace(step, inputs=mapped(make, resize), loss=loss)


def _resizer(inputs: Any, new_size: Callable[[int], int]) -> Resize:
    from graphmem.trace.loop import tensors_in

    first = next((tensor for tensor in tensors_in(inputs) if tensor.dim()), None)
    if first is None:
        raise BatchOfNoTensorsError()
    old = first.shape[0]
    return partial(_resized, old=old, new=new_size(old))


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Apply a change to every tensor in nested dicts, tuples and lists."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped(item, change) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(item, change) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(mapped(item, change) for item in value)
    return value


def _resized(tensor: torch.Tensor, old: int, new: int) -> torch.Tensor:
    if not tensor.dim() or tensor.shape[0] != old:
        return tensor
    rows = torch.arange(new, device=tensor.device) % old
    return tensor.detach()[rows].requires_grad_(tensor.requires_grad)
