"""The command line: `graphmem COMMAND …`, one module of this package for each command.

To add a command, write a function with typer's annotations in a module of its own and name it in
`COMMANDS`. No module here imports torch at its top, so that `--help` answers at once.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import typer

from graphmem.cli.analyze import analyze
from graphmem.cli.check import check
from graphmem.cli.closed_form import closed_form
from graphmem.cli.diff import diff
from graphmem.cli.errors import Settings, guarded, open_missing_streams
from graphmem.cli.explain import explain
from graphmem.cli.fit import fit
from graphmem.cli.gpus import gpus
from graphmem.cli.graph import graph
from graphmem.cli.init import init
from graphmem.cli.leaving import leave
from graphmem.cli.merge_lock import merge_lock
from graphmem.cli.plan import plan
from graphmem.cli.published import published
from graphmem.cli.recorded import Command
from graphmem.cli.render import render
from graphmem.cli.run import RunCommand, run
from graphmem.cli.signals import orderly_interruption, orderly_termination
from graphmem.cli.verify import verify
from graphmem.cli.watch import watch
from graphmem.cli.whatif import whatif
from graphmem.data_stack import with_room
from graphmem.version import __version__

COMMANDS: Mapping[str, tuple[Callable[..., Any], ...]] = {
    "Start here": (run, analyze, fit),
    "Understand a step": (explain, render, graph, diff),
    "Change it": (whatif, watch),
    "Split it over many GPUs": (plan,),
    "Guard it in CI": (init, check),
    "Trust it": (verify, gpus, published, closed_form),
}
"""The commands by purpose, in the order of the help."""

_FOR_PROGRAMS = (merge_lock,)
"""Commands that other programs call, which the help leaves out."""

_START = """\
Predict the GPU memory of a PyTorch training step, byte for byte, without a GPU. Start here:

  graphmem run train.py             your script as it stands, on a virtual GPU
  graphmem analyze model.py:build   one step of a model: does it fit, and what holds the peak
  graphmem fit model.py:build       the largest batch that fits on a card

graphmem --help lists every command, graphmem COMMAND --help explains one.
"""

_COMPLETION = "_GRAPHMEM_COMPLETE"
"""Set by the shell that asks for completions, as typer's scripts do."""

_RENAMED = {"formula": "closed-form", "formulas": "published"}
"""Former names of commands, which work until 0.2."""


class _Program(typer.core.TyperGroup):
    """The commands, and those of a former name."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command by its current or its former name."""
        name = _RENAMED.get(cmd_name)
        if name is not None:
            typer.echo(f"note: `graphmem {cmd_name}` is now `graphmem {name}`", err=True)
        return super().get_command(ctx, name or cmd_name)


@with_room
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own) and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    settings = Settings(ends_process=argv is None)
    open_missing_streams()
    with orderly_interruption(), orderly_termination():
        exit_code = guarded(partial(_run, arguments, settings), settings)
    return exit_code if argv is not None else leave(exit_code)


def _run(arguments: list[str], settings: Settings) -> None:
    completes = _COMPLETION in os.environ
    if not arguments and not completes:
        typer.echo(_START, nl=False)
        return
    program = build_program()
    try:
        if completes:
            program.main(arguments, "graphmem")
        context = program.make_context("graphmem", arguments, obj=settings)
    except SystemExit as stop:  # typer ends the process once it has dealt with completion
        raise typer.Exit(int(stop.code or 0)) from stop
    with context:
        program.invoke(context)


def build_program() -> typer.core.TyperGroup:
    """Make the program with all its commands and options."""
    app = typer.Typer(
        cls=_Program,
        help="Predict the GPU memory of a PyTorch training step, byte for byte, without a GPU.",
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_global_options)
    for panel, commands in COMMANDS.items():
        for command in commands:
            app.command(rich_help_panel=panel, cls=RunCommand if command is run else Command)(
                command
            )
    for command in _FOR_PROGRAMS:
        app.command(hidden=True, cls=Command)(command)
    program = typer.main.get_command(app)
    assert isinstance(program, typer.core.TyperGroup)
    # `graphmem gpus --debug` means the same as `graphmem --debug gpus`.
    debug = next(option for option in program.params if option.name == "debug")
    for subprogram in program.commands.values():
        subprogram.params.append(debug)
    for each in (program, *program.commands.values()):
        each.help = _unwrapped(each.help or "")
        each.get_help_option = partial(_help_option, each.get_help_option)  # type: ignore[method-assign]
        for option in each.params:
            _tidy(option)
    return program


def _unwrapped(text: str) -> str:
    """Text with a line for each paragraph, which the terminal then breaks at its own width."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(each.split()) for each in paragraphs)


def _help_option(made: Callable[[Any], Any], context: Any) -> Any:
    option = made(context)
    _tidy(option)
    return option


def _tidy(option: Any) -> None:
    """Have rich print `[default: …]`, which it takes for markup, and no type that says nothing."""
    text = getattr(option, "help", None)
    if text:
        option.help = re.sub(r"(?<!\\)\[default:", r"\\[default:", text)
    is_argument = option.param_type_name == "argument"
    if is_argument or getattr(option, "is_flag", False):
        option.display_type_rich = lambda ctx: None
    if is_argument:
        name = option.metavar
        is_bare = option.required or name.startswith("[")
        option._usage_display_name = lambda: name if is_bare else f"[{name}]"


def _set_debug(context: typer.Context, value: bool) -> None:
    settings: Settings = context.obj
    settings.debug = settings.debug or value


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"graphmem {__version__}")
        raise typer.Exit


def _global_options(
    *,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug",
            help="Show the whole traceback of an error.",
            callback=_set_debug,
            expose_value=False,
            is_eager=True,
        ),
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and stop.",
            callback=_print_version,
            expose_value=False,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Declare the options of every command; their callbacks do the work."""
