"""`graphmem analyze`: the main job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphmem.advice.commands import advice_command
from graphmem.cli import options
from graphmem.cli.output import console, hint_at_cards, keep, progress, put_result
from graphmem.cli.request import takes_request
from graphmem.gpus import AssumedCard
from graphmem.targets import RECORD

if TYPE_CHECKING:
    from graphmem.analysis import Analysis, Request
    from graphmem.report import Report


@takes_request(
    "settings gpu torch env assume strict compile autocast optimizer grads steps "
    "inference freeze checkpoint activation batch"
)
def analyze(
    target: options.Target,
    *,
    request: Request,
    timeout: options.Timeout = None,
    output_format: options.Format = "text",
    output: options.Output = None,
    html: options.Html = None,
    no_source: options.NoSource = False,
    save: options.Save = None,
    verbose: options.Verbose = False,
    brief: options.Brief = False,
    advice: Annotated[
        bool | None,
        typer.Option(
            "--advice/--no-advice",
            help="Measure the largest batch that fits, and the changes that save most.  "
            "[default: in text, where the step does not fit, unless that takes long]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Report a training step's peak GPU memory, when it occurs and what holds it.

    build() returns a model with its inputs, (model, inputs, loss_fn), or a graphmem.TrainingStep.
    It runs on this machine, on tensors without data: no GPU is needed.

    Example: graphmem analyze model.py:build --gpu h100 --autocast bf16
    """
    from graphmem.analysis import run_analysis
    from graphmem.time_limit import time_limit

    request = replace(request, bounds=True)
    with progress() as report_progress, time_limit(timeout):
        analysis = run_analysis(target, request, report_progress)
    wants = _Wants(output_format, output, verbose, brief, advice)
    more = advice_command(target, request)
    show = wants.begin(analysis, target, more)
    with progress() as report_progress:
        if wants.first_aid(analysis.report, target):
            analysis = with_advice(analysis, target, request, report_progress, asked=bool(advice))
        keep(analysis, html, save, report_progress, with_source=not no_source, more=more)
    put_result(output_format, output, analysis.report.to_json, partial(show, analysis.report))
    if isinstance(request.gpu, AssumedCard) and not brief:
        hint_at_cards(analysis.report.runtime.title)


@dataclass(frozen=True)
class _Wants:
    """The output options."""

    output_format: str
    output: Path | None
    verbose: bool
    brief: bool
    advice: bool | None

    def first_aid(self, report: Report, target: str) -> bool:
        """Whether to measure helpful changes; a saved step cannot be traced again."""
        card = report.on_card
        if target.endswith(RECORD) or card is None or self.advice is False:
            return False
        return bool(self.advice) or not (card.fits or self.brief or self.output_format == "json")

    def begin(self, analysis: Analysis, target: str, more: str) -> Callable[..., None]:
        """Print the verdict first if advice takes a while; return what prints the rest.

        `more` is the command that measures advice.
        """
        from graphmem.report.text import print_brief, print_report, print_rest, print_verdict

        if self.brief:
            return print_brief
        report = analysis.report
        measures = self.first_aid(report, target)
        if measures and self.output is None and self.output_format == "text":
            print_verdict(report, console(), verbose=self.verbose)
            return partial(print_rest, verbose=self.verbose)
        unwanted = measures or self.advice is False
        return partial(print_report, verbose=self.verbose, more="" if unwanted else more)


def with_advice(
    analysis: Analysis,
    target: str,
    request: Request,
    tell: Callable[[str], None],
    *,
    asked: bool,
) -> Analysis:
    """The analysis with advice in its report; all advice if the user asked for it."""
    from msgspec import structs

    from graphmem.advice.first_aid import AFFORDABLE, first_aid

    found = first_aid(target, request, analysis, tell, None if asked else AFFORDABLE)
    return replace(analysis, report=structs.replace(analysis.report, advice=found))
