"""Scale the batch of a training step: the first dimension of its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from graphmem.errors import InputError
from graphmem.training_step import TrainingStep


def scale_batch(step: TrainingStep, factor: float) -> Any:
    """The inputs of a step, scaled.

    The batch is the first dimension of the first tensor; every tensor whose first dimension has the
    same size is repeated or cut to the scaled size.

    Raises:
        InputError: the step holds its inputs itself, or the factor leaves nothing.
    """
    if step.step is not None:
        raise InputError(
            "--batch cannot reach the inputs of a step that runs itself",
            hint="give build() an argument for the batch, and set it with --set",
        )
    inputs = step.inputs
    if callable(inputs):
        return lambda: _scaled(inputs(), factor)
    return _scaled(inputs, factor)


def _scaled(inputs: Any, factor: float) -> Any:
    from graphmem.trace.loop import tensors_in

    first = next((tensor for tensor in tensors_in(inputs) if tensor.dim()), None)
    if first is None:
        raise InputError("--batch needs inputs that are tensors")
    old = first.shape[0]
    new = round(old * factor)
    if new < 1:
        raise InputError(f"a batch of {old} times {factor:g} is less than one")
    return _mapped(inputs, lambda tensor: _resized(tensor, old, new))


def _mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _mapped(item, change) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_mapped(item, change) for item in value)
    return value


def _resized(tensor: torch.Tensor, old: int, new: int) -> torch.Tensor:
    if not tensor.dim() or tensor.shape[0] != old:
        return tensor
    rows = torch.arange(new, device=tensor.device) % old
    return tensor.detach()[rows].requires_grad_(tensor.requires_grad)
