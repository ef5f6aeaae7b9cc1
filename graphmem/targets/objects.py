"""Python objects as targets: a model with its inputs, or a `TrainingStep`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, cast

from graphmem.changes import Changes
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
            make = partial(TrainingStep, model=target, inputs=inputs, loss=loss)
            return Given(make, type(target).__name__)
        needed = inputs_needed(target)
        if needed:
            raise messages.ModelWithoutInputsError(type(target).__name__, needed)
        return Given(lambda: target, type(target).__name__)
    if inputs is not None or loss is not None:
        raise messages.InputsWithoutModelError
    if isinstance(target, TrainingStep):
        return Given(lambda: target, type(target.model or target).__name__)
    if isinstance(target, str):
        return target
    if callable(target):
        return cast(Callable[..., Any], target)
    raise messages.NoTargetError(type(target).__name__)


@dataclass(frozen=True)
class Given:
    """A target that its caller has made already; `__name__` is its class's."""

    make: Callable[[], Any]
    __name__: str

    def __call__(self) -> Any:
        """Return what `build` would."""
        return self.make()


def check_names(function: str, given: dict[str, Any], options: type, *more: str) -> None:
    """Reject unknown options.

    Raises:
        InputError: there is one; the hint has the nearest name.
    """
    known = [*more, *(each.name for each in fields(options))]
    changes = {each.name for each in fields(Changes)} if "changes" in known else set()
    for name in given:
        if name in changes:
            raise messages.ChangeAsArgumentError(function, name)
        if name not in known:
            raise messages.UnknownArgumentError(function, name, known)
