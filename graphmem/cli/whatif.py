"""`graphmem whatif`: the figures of a step before and after changes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from graphmem.cli import changes, options
from graphmem.cli.messages import NoAutocastDtypeError, NoChangeError
from graphmem.cli.output import console, progress
from graphmem.cli.request import takes_request
from graphmem.targets import is_record
from graphmem.targets.messages import SavedStepNotBuiltError

if TYPE_CHECKING:
    from graphmem.analysis import Request


@takes_request("settings gpu torch env assume grads steps")
def whatif(
    target: options.Code,
    *,
    request: Request,
    autocast: options.Autocast = None,
    optimizer: options.Optimizer = None,
    compile: options.Compile = None,
    freeze: options.Freeze = None,
    checkpoint: changes.Checkpoint = None,
    activation: changes.Activation = None,
    batch: changes.Batch = None,
    quantise: changes.Quantise = None,
    lora: changes.Lora = None,
    offload: changes.Offload = False,
    dtype: Annotated[
        Literal["fp16", "bf16"] | None,
        typer.Option(
            "--dtype",
            help="Use this dtype for weights and inputs, without autocast.",
            show_default=False,
        ),
    ] = None,
    output_format: options.Format = "text",
) -> None:
    """Compare a training step with a changed one, by category. Both are traced, so both are exact.

    Example: graphmem whatif model.py:build --checkpoint 'h.*' --batch 16
    """
    from graphmem.advice import ReportComparison
    from graphmem.advice.comparison_table import comparison_table
    from graphmem.analysis import run_analysis

    if is_record(target):
        raise SavedStepNotBuiltError(target)
    if dtype is not None and autocast not in (None, "none"):
        raise NoAutocastDtypeError(dtype)
    after = replace(
        request,
        autocast=autocast,
        optimizer=optimizer,
        compile=compile,
        offload=offload,
        changes=changes.changes_of(
            freeze, checkpoint, activation, batch, dtype, quantise=quantise, lora=lora
        ),
    )
    if after == request:
        raise NoChangeError()
    with progress() as report_progress:
        reports = [run_analysis(target, each, report_progress).report for each in (request, after)]
    comparison = ReportComparison(*reports)
    if output_format == "json":
        typer.echo(comparison.to_json(), nl=False)
    else:
        console().print(comparison_table(comparison))
