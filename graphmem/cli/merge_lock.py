"""`graphmem merge-lock`: called by git, once `graphmem init --merge-driver` has told it to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphmem.cli.output import write_text

_A_FILE = typer.Argument(show_default=False)


def merge_lock(
    base: Annotated[Path, _A_FILE],
    ours: Annotated[Path, _A_FILE],
    theirs: Annotated[Path, _A_FILE],
) -> None:
    """Merge two versions of graphmem.lock into OURS; exit with 1 if a target must be measured."""
    from graphmem.gate.lock import has_conflict
    from graphmem.gate.merge import merge_locks

    text = merge_locks(base, ours, theirs)
    write_text(ours, text)
    if has_conflict(text):
        typer.echo("`graphmem check --update` measures what both sides changed", err=True)
        raise typer.Exit(1)
