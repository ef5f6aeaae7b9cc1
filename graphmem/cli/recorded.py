"""A saved step in place of a target: options that would have changed its trace are refused."""

from __future__ import annotations

from typing import Any

import typer

from graphmem.target import RECORD

# The options of commands that say how a target is traced, by the name of their parameter.
_OF_THE_TRACE = {
    "settings": "--set",
    "gpu": "--gpu",
    "torch": "--torch",
    "env": "--env",
    "assume": "--assume",
    "strict": "--strict",
    "autocast": "--autocast",
    "optimizer": "--optimizer",
    "grads": "--grads",
    "steps": "--steps",
    "inference": "--inference",
    "freeze": "--freeze",
    "checkpoint": "--checkpoint",
    "precision": "--precision",
}


class Command(typer.core.TyperCommand):
    """A command that takes a target."""

    def invoke(self, ctx: Any) -> Any:
        """Run it.

        Raises:
            InputError: the target is a saved step, and an option would have it be another.
        """
        target = ctx.params.get("target")
        if isinstance(target, str) and target.endswith(RECORD):
            _refuse_options(target, ctx)
        return super().invoke(ctx)


def _refuse_options(target: str, context: typer.Context) -> None:
    from graphmem.analysis import cannot_change

    for name, option in _OF_THE_TRACE.items():
        source = context.get_parameter_source(name) if name in context.params else None
        if source is not None and source.name == "COMMANDLINE":
            raise cannot_change(target, option)
