"""`graphmem diff`: what a change costs, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from graphmem.cli import options
from graphmem.cli.messages import WhichTwoError
from graphmem.cli.output import put
from graphmem.cli.request import takes_request

if TYPE_CHECKING:
    from graphmem.analysis import Request


@takes_request("settings gpu autocast optimizer steps")
def diff(
    sides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="BASE HEAD",
            help="Two targets, steps (`--save`) or reports (`analyze --format json`). "
            "With --git: targets, "
            "or names from the configuration; default: all of those.",
            show_default=False,
        ),
    ] = None,
    git: Annotated[
        str | None,
        typer.Option("--git", metavar="BASE..HEAD", help="Compare two revisions: main..HEAD."),
    ] = None,
    *,
    request: Request,
    output_format: Annotated[
        Literal["text", "json", "markdown"],
        typer.Option("--format", help="Output format."),
    ] = "text",
    output: options.Output = None,
) -> None:
    """Show what was added, removed, grew or moved at the peak, biggest cause first.

    Storages are matched by module and operation, not by position.

    Example: graphmem diff --git main..HEAD model.py:build
    """
    from graphmem.gate.diff_inputs import diff_revisions, diff_two
    from graphmem.gate.formats.differences import DIFF_FORMATS

    if git is not None:
        diffs = diff_revisions(git, sides or (), request)
    elif sides is not None and len(sides) == 2:
        diffs = [diff_two(sides[0], sides[1], request)]
    else:
        raise WhichTwoError()
    text = DIFF_FORMATS[output_format](diffs)
    put(text, output)
