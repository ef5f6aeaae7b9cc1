"""Objects in place of a target's name: a model with its inputs, or a `TrainingStep`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, cast

from graphmem.errors import InputError
from graphmem.training_step import TrainingStep


def target_of(
    target: Any, inputs: Any, loss: Callable[..., Any] | None
) -> str | Callable[..., Any]:
    """What `load_target` takes, for what somebody gave in Python.

    Raises:
        InputError: inputs or a loss beside something that has its own.
    """
    from torch import nn

    if isinstance(target, nn.Module):
        if inputs is None:
            return _named(lambda: target, target)
        return _named(lambda: TrainingStep(model=target, inputs=inputs, loss=loss), target)
    if inputs is not None or loss is not None:
        raise InputError(
            "inputs and loss go with a model",
            hint="graphmem.analyze(model, inputs, loss=…); build() and TrainingStep have their own",
        )
    if isinstance(target, TrainingStep):
        return _named(lambda: target, target.model or target)
    if isinstance(target, str):
        return target
    if callable(target):
        return cast(Callable[..., Any], target)
    raise InputError(
        f"cannot analyse a value of type {type(target).__name__}",
        hint='give a model and its inputs, a TrainingStep, or a target such as "model.py:build"',
    )


def _named(make: Callable[[], Any], thing: Any) -> Callable[[], Any]:
    make.__name__ = type(thing).__name__
    return make


def check_names(function: str, given: dict[str, Any], options: type, *more: str) -> None:
    """Refuse an option that a function does not have.

    Raises:
        InputError: there is one; the hint names the nearest.
    """
    known = [*more, *(each.name for each in fields(options))]
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            raise InputError(
                f"{function}() has no argument {name!r}",
                hint=f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}",
            )
