"""`graphmem init`: a first configuration for the gate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphmem.cli.messages import AlreadyConfiguredError
from graphmem.cli.output import write_text
from graphmem.units import counted


def init(
    merge_driver: Annotated[
        bool,
        typer.Option(
            "--merge-driver",
            help="Instead, have git merge graphmem.lock target by target: this adds a line to "
            ".gitattributes, to be committed, and configures this clone.",
        ),
    ] = False,
) -> None:
    """Write graphmem.toml for the project in this folder, with every key explained.

    Its targets are the Python files that have a function build().
    """
    from graphmem.gate.config import FILE, load_config
    from graphmem.gate.merge import install_driver
    from graphmem.gate.scaffold import scaffold

    if merge_driver:
        install_driver(Path.cwd())
        typer.echo("git now merges graphmem.lock by targets; commit .gitattributes")
        return
    path = Path.cwd() / FILE
    if path.exists():
        raise AlreadyConfiguredError(FILE)
    text, targets = scaffold(Path.cwd())
    write_text(path, text)
    load_config(path)
    named = ", ".join(targets) or "none found"
    typer.echo(f"wrote {FILE} with {counted(len(targets), 'target')}: {named}")
    typer.echo("next: `graphmem check --update` writes the baseline; commit both files")
