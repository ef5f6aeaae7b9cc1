"""Python objects as targets: a model with its inputs, or a `TrainingStep`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, cast

from graphmem.targets import messages
from graphmem.training_step import TrainingStep


def target_of(
    target: Any, inputs: Any, loss: Callable[..., Any] | None
) -> str | Callable[..., Any]:
    """Convert a Python object to a target for `load_target`.

    Raises:
        InputError: a model lacks its inputs, or something that has its own is given more.
    """
    from torch import nn

    from graphmem.targets.returned import inputs_needed

    if isinstance(target, nn.Module):
        if inputs is not None:
            return _named(lambda: TrainingStep(model=target, inputs=inputs, loss=loss), target)
        needed = inputs_needed(target)
        if needed:
            raise messages.ModelWithoutInputsError(type(target).__name__, needed)
        return _named(lambda: target, target)
    if inputs is not None or loss is not None:
        raise messages.InputsWithoutModelError
    if isinstance(target, TrainingStep):
        return _named(lambda: target, target.model or target)
    if isinstance(target, str):
        return target
    if callable(target):
        return cast(Callable[..., Any], target)
    raise messages.NoTargetError(type(target).__name__)


def _named(make: Callable[[], Any], thing: Any) -> Callable[[], Any]:
    make.__name__ = type(thing).__name__
    return make


def check_names(function: str, given: dict[str, Any], options: type, *more: str) -> None:
    """Reject unknown options.

    Raises:
        InputError: there is one; the hint has the nearest name.
    """
    known = [*more, *(each.name for each in fields(options))]
    for name in given:
        if name not in known:
            raise messages.UnknownArgumentError(function, name, known)
