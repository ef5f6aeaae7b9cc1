"""Convert the result of `build()` to a `TrainingStep`.

Clauses:
  (1) a `TrainingStep`, a model, `(model, inputs)` and `(model, inputs, loss_fn)` are accepted;
  (2) a model without inputs must be callable without any;
  (3) if graphmem runs the loop, no optimizer means AdamW.
"""

from __future__ import annotations

from dataclasses import replace
from inspect import Parameter
from typing import Any

import torch

from graphmem.signatures import parameters_of
from graphmem.targets import messages
from graphmem.trace.loop import optimizer_named
from graphmem.training_step import TrainingStep

DEFAULT_OPTIMIZER = "adamw"


def step_from(returned: Any, name: str) -> TrainingStep:
    """Convert what the function `name` returned.

    Raises:
        InputError: it does not have an accepted form.
    """
    step = _as_step(returned, name)
    _check(step, name)
    if step.step is not None:
        return step
    if step.inputs is None:
        step = replace(step, inputs=_no_inputs(step.model, name))
    if step.optimizer is None:
        step = replace(step, optimizer=optimizer_named(DEFAULT_OPTIMIZER))
    return step


def _as_step(returned: Any, name: str) -> TrainingStep:
    if isinstance(returned, TrainingStep):
        return returned
    is_tuple = isinstance(returned, tuple) and len(returned) in (2, 3)
    parts = returned if is_tuple else (returned,)
    if not isinstance(parts[0], torch.nn.Module):
        raise messages.WrongReturnError(name, returned)
    return TrainingStep(*parts)


def _check(step: TrainingStep, name: str) -> None:
    """Reject a training step whose parts have the wrong type."""
    if step.step is None and step.model is None:
        raise messages.EmptyStepError(name)
    if step.model is not None and not isinstance(step.model, torch.nn.Module):
        raise messages.WrongPartError(name, "model", step.model, "a torch.nn.Module")
    for part, value in (("loss", step.loss), ("step", step.step)):
        if value is not None and not callable(value):
            raise messages.WrongPartError(name, part, value, "a function")
    optimizer = step.optimizer
    made = optimizer is None or isinstance(optimizer, torch.optim.Optimizer)
    if not made and not callable(optimizer):
        expected = "a torch.optim.Optimizer, or a function that makes one"
        raise messages.WrongPartError(name, "optimizer", optimizer, expected)
    accumulate: Any = step.accumulate
    if not isinstance(accumulate, int) or accumulate < 1:
        raise messages.WrongAccumulateError(name, accumulate)


def _no_inputs(model: torch.nn.Module | None, name: str) -> tuple[()]:
    """The inputs of a model that takes none."""
    assert model is not None
    needed = inputs_needed(model)
    if needed:
        raise messages.NoInputsError(name, needed)
    return ()


def inputs_needed(model: torch.nn.Module) -> list[str]:
    """The parameters of a model's `forward` that have no default."""
    return [
        parameter.name
        for parameter in parameters_of(model.forward).values()
        if parameter.default is Parameter.empty
        and parameter.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    ]
