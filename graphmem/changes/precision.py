"""Keep a training step's weights in a lower precision, and compute in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from graphmem.changes.batch import mapped
from graphmem.changes.messages import PrecisionOutOfReachError
from graphmem.training_step import TrainingStep


def in_precision(step: TrainingStep, dtype: str) -> TrainingStep:
    """The step with weights and floating-point inputs in another dtype, and without autocast.

    Args:
        step: the result of `build()`.
        dtype: a key of `AUTOCAST_DTYPES`, such as "bf16".

    Raises:
        InputError: the step is a function, so its model and inputs are out of reach.
    """
    from graphmem.trace.loop import AUTOCAST_DTYPES

    if step.model is None or step.step is not None:
        raise PrecisionOutOfReachError()
    wanted = AUTOCAST_DTYPES[dtype]
    step.model.to(wanted)
    return replace(step, inputs=_inputs(step.inputs, wanted), autocast=None)


def _inputs(inputs: Any, dtype: torch.dtype) -> Any:
    def converted(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    if callable(inputs):
        make: Callable[[], Any] = inputs
        return lambda: mapped(make(), converted)
    return mapped(inputs, converted)
