"""The commands that analyse a target, which may be a saved step: all but `graphmem run`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import typer

from graphmem.own_process import own_process
from graphmem.targets import is_record

_OF_CHANGES = frozenset({"freeze", "checkpoint", "precision"})
"""Parameters of commands that become `Request.changes`; the others are called as its fields."""


class Command(typer.core.TyperCommand):
    """A command whose process is graphmem's own."""

    def invoke(self, ctx: Any) -> Any:
        """Run it; options that would change the trace of a saved step are rejected.

        Raises:
            InputError: the target is a saved step, and an option would change it.
        """
        target = ctx.params.get("target")
        if is_record(target):
            self._refuse_options(target, ctx)
        with own_process():
            return super().invoke(ctx)

    def _refuse_options(self, target: str, context: Any) -> None:
        from graphmem.analysis import Request, SavedStepFixedError

        of_the_trace = _OF_CHANGES.union(each.name for each in fields(Request))
        for option in self.params:
            source = context.get_parameter_source(option.name)
            is_given = source is not None and source.name == "COMMANDLINE"
            if is_given and option.name in of_the_trace:
                raise SavedStepFixedError(target, option.opts[0])
