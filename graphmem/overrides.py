"""What a request changes in the step that `build` made."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from graphmem.changes import changed
from graphmem.errors import InputError
from graphmem.training_step import TrainingStep

if TYPE_CHECKING:
    from graphmem.analysis import Request


class StepRunsItselfError(InputError):
    """An option replaces a part of a step that has its own loop."""

    def __init__(self, option: str) -> None:
        super().__init__(
            f"{option} cannot reach into a step that runs itself",
            hint="make it an argument of build() and use --set, or return TrainingStep(model=…, "
            "inputs=…)",
        )


def overridden(step: TrainingStep, request: Request) -> TrainingStep:
    """Override what `build` set by what the request sets.

    Raises:
        InputError: the step is a function with its own autocast and optimizer.
    """
    import torch

    from graphmem.trace.loop import optimizer_named

    compile_ = request.compile or None
    for option, wanted in (
        ("--autocast", request.autocast),
        ("--optimizer", request.optimizer),
        ("--compile", compile_),
        ("--quantise", request.changes.quantise),
        ("--lora", request.changes.lora),
        ("--offload", request.offload or None),
    ):
        if wanted is not None and step.step is not None:
            raise StepRunsItselfError(option)
    if request.autocast is not None:
        step = replace(step, autocast=None if request.autocast == "none" else request.autocast)
    if request.optimizer is not None:
        step = replace(step, optimizer=optimizer_named(request.optimizer))
    step = changed(step, request.changes)
    if compile_ and step.model is not None:
        step = replace(step, model=cast(torch.nn.Module, torch.compile(step.model)))
    return step
