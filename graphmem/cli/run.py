"""`graphmem run`: an unmodified training script on a virtual GPU."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import chdir, nullcontext, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphmem.cli import options
from graphmem.cli.output import hint_at_cards, keep, write_text
from graphmem.cli.run_ranks import run_ranks, variables
from graphmem.frames import beginning_here
from graphmem.gpus import AssumedCard
from graphmem.live.launchers import refuse_launcher
from graphmem.own_process import script_process, without_collector
from graphmem.plain_text import Console, plain_text, width_for

if TYPE_CHECKING:
    from graphmem.cli.errors import Settings
    from graphmem.live.gpu import VirtualGpu
    from graphmem.live.running import Ending
    from graphmem.live.script import Program
    from graphmem.report import Report

_OWN_OPTIONS = ("--gpu", "--assume", "--max-steps", "--html", "--save", "--brief", "--verbose")


class RunCommand(typer.core.TyperCommand):
    """A command whose process is a script's while that runs.

    Attributes:
        allow_interspersed_args: false, as arguments after the script belong to the script.
    """

    allow_interspersed_args = False

    def invoke(self, ctx: Any) -> Any:
        """Run it."""
        with without_collector():
            return super().invoke(ctx)


def run(
    context: typer.Context,
    script: Annotated[
        str,
        typer.Argument(
            metavar="SCRIPT",
            help="A script or command; with -m, a module; or a target of `analyze`: model.py:f.",
            show_default=False,
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ARGS]...", help="Arguments passed to the script.", show_default=False
        ),
    ] = None,
    is_module: Annotated[
        bool, typer.Option("-m", help="SCRIPT is a module, as in `python -m package.module`.")
    ] = False,
    gpu: options.GpuName = options.DEFAULT_GPU_NAME,
    torch: options.TorchVersion = None,
    env: options.Environment = None,
    assume: options.Assume = None,
    stand_in: Annotated[
        list[str] | None,
        typer.Option(
            "--stand-in",
            metavar="NAME",
            help="A compiled package that is not installed, such as flash_attn, for which "
            "graphmem stands in; repeatable.",
            show_default=False,
        ),
    ] = None,
    strict: options.Strict = False,
    no_compile: options.NoCompile = False,
    max_steps: Annotated[
        int | None,
        typer.Option(
            "--max-steps",
            min=1,
            metavar="N",
            help="Stop after N iterations. An iteration ends with optimizer.step(); without an "
            "optimizer, with backward(); if nothing trains, with a forward pass.",
            show_default=False,
        ),
    ] = None,
    per_node: Annotated[
        int | None,
        typer.Option(
            "--nproc-per-node",
            min=1,
            metavar="N",
            help="Run one rank of a job with N processes on each node, as torchrun would start "
            "it.  [default: what RANK and WORLD_SIZE say]",
            show_default=False,
        ),
    ] = None,
    nodes: Annotated[
        int, typer.Option("--nnodes", min=1, metavar="N", help="How many nodes there are.")
    ] = 1,
    rank: Annotated[
        str | None,
        typer.Option(
            "--rank",
            metavar="R",
            help="Which rank to run. Several, as in 0,3, or `all` run in separate processes.  "
            "[default: RANK, or 0]",
            show_default=False,
        ),
    ] = None,
    timeout: options.Timeout = None,
    output_format: options.Format = "text",
    output: options.Output = None,
    html: options.Html = None,
    no_source: options.NoSource = False,
    save: options.Save = None,
    verbose: options.Verbose = False,
    brief: options.Brief = False,
) -> None:
    """Run an unmodified training script on a virtual GPU, and report its memory.

    The script sees one CUDA device of the given model; CPU code runs for real.

    Operations on the device do no arithmetic. Queries about its memory are answered as the card
    would; a request that does not fit raises torch.cuda.OutOfMemoryError.

    Values that the script computed from known ones, such as a mask, are read as they are. Other
    values read back from the GPU are assumed: 1.0 for a loss, zeros for a tensor. Each assumption
    is printed once to stderr and listed in the report.

    The script's output is untouched: the report goes to stderr, or to FILE. The exit code is the
    script's own.

    Example: graphmem run --gpu a100-80gb train.py --batch_size 12
    """
    from graphmem.ranks.world import World

    refuse_launcher(script, arguments or (), is_module=is_module)
    worlds = World.chosen(os.environ, per_node, nodes, rank)
    again = _spelled(
        *(("--gpu", gpu), ("--torch", torch), ("--max-steps", max_steps), ("--timeout", timeout)),
        *(("--env", each) for each in env or ()),
        *(("--assume", each) for each in assume or ()),
        *(("--stand-in", each) for each in stand_in or ()),
        *(("--nproc-per-node", per_node), ("--nnodes", nodes if nodes > 1 else None)),
    ) + (["--strict"] * strict + ["--no-compile"] * no_compile)
    program = [*["-m"] * is_module, script, *(arguments or ())]
    if len(worlds) > 1:
        run_ranks(worlds, [*again, *program], output_format, output, (html, save))
    from graphmem.live.gpu import VirtualGpu

    tell = _teller()
    to_run = _program(script, arguments or (), max_steps, context.obj, is_module=is_module)
    launched = worlds[0].launched(variables(again, program)) if worlds else nullcontext()
    with beginning_here() as here, launched:
        device = VirtualGpu(
            gpu,
            torch=torch,
            env=options.pairs(env, "--env"),
            assume=assume or (),
            stand_in=stand_in or (),
            strict=strict,
            compiles=not no_compile,
            max_steps=max_steps,
            tell=tell,
            name=" ".join(["-m", script] if is_module else [script]),
        )
        ending = _ending_of(to_run, device, timeout)
    _tell_ending(ending, script, _misplaced(script, arguments or (), context), tell)
    with chdir(here):  # not where the script has gone; its functions of `atexit` are to come
        analysis = device.analysis(shlex.join(arguments or ()))
        keep(analysis, html, save, tell, with_source=not no_source)
        _show(analysis.report, output_format, output, verbose=verbose, brief=brief)
        _hint(analysis.report, gpu, save, tell, brief=brief or output_format != "text")
    raise ending.error or typer.Exit(ending.exit_code)


def _program(
    script: str,
    arguments: Sequence[str],
    max_steps: int | None,
    settings: Settings,
    *,
    is_module: bool,
) -> Program:
    from graphmem.live.script import UserProgram
    from graphmem.live.target import STEPS, TargetProgram, is_target

    if not is_module and is_target(script):
        return TargetProgram(script, tuple(arguments), max_steps or STEPS)
    return UserProgram(script, is_module, arguments, ends_process=settings.ends_process)


def _ending_of(program: Program, device: VirtualGpu, timeout: float | None) -> Ending:
    from graphmem.live.running import run as run_program

    with script_process(), redirect_stdout(sys.stdout), redirect_stderr(sys.stderr):
        return run_program(program, device, timeout)  # a script may replace the streams


def _teller() -> Callable[[str], None]:
    """Print lines to the present stderr, which the script may replace."""
    stderr = Console(stderr=True, highlight=False, soft_wrap=True)

    def tell(line: str) -> None:
        stderr.print(f"graphmem: {line}", markup=False, style="dim")

    return tell


def _tell_ending(
    ending: Ending, script: str, misplaced: Sequence[str], tell: Callable[[str], None]
) -> None:
    if ending.why is not None:
        tell(ending.why)
    if misplaced:
        tell(f"hint: {misplaced[0]} went to the script; graphmem's options go before {script}")


def _misplaced(script: str, arguments: Sequence[str], context: typer.Context) -> list[str]:
    """Options that look like graphmem's and are neither given to it nor defined by the script."""

    def is_given(option: str) -> bool:
        source = context.get_parameter_source(option.lstrip("-").replace("-", "_"))
        return source is not None and source.name == "COMMANDLINE"

    own = [option for option in _OWN_OPTIONS if not is_given(option)]
    given = [each for each in arguments if each.partition("=")[0] in own]
    return [each for each in given if not _defines(script, each.partition("=")[0])]


def _defines(script: str, option: str) -> bool:
    """Whether a script's text has an option as a string, as in `add_argument("--save")`."""
    try:
        text = Path(script).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return any(f"{quote}{option}{quote}" in text for quote in "'\"")


def _hint(
    report: Report, gpu: str, saved: Path | None, tell: Callable[[str], None], *, brief: bool
) -> None:
    """Say what to do about a script that does not fit, and how to name another card."""
    card = report.on_card
    if card is not None and not card.fits and not brief:
        file = saved or "step.graphmem"
        how = "" if saved else f"with --save {file}, "
        tell(f"hint: {how}`graphmem explain {file}` lists what may lower the peak")
    if isinstance(gpu, AssumedCard) and report.operations and not brief:
        hint_at_cards(report.runtime.title)


def _spelled(*given: tuple[str, object]) -> list[str]:
    """Options as on the command line, without those not given."""
    return [part for name, value in given if value is not None for part in (name, str(value))]


def _show(
    report: Report, output_format: str, output: Path | None, *, verbose: bool, brief: bool
) -> None:
    from graphmem.report.text import print_brief, print_report

    show = partial(print_brief if brief else partial(print_report, verbose=verbose), report)
    if output is not None:
        write_text(output, report.to_json() if output_format == "json" else plain_text(show))
    elif output_format == "json":
        typer.echo(report.to_json(), nl=False, err=True)
    else:
        show(Console(stderr=True, highlight=False, width=width_for(sys.stderr)))
