"""`graphmem analyze`: the main job."""

from __future__ import annotations

from functools import partial

from graphmem.cli import options
from graphmem.cli.output import hint_at_cards, keep, progress, put_result


def analyze(
    target: options.Target,
    settings: options.Settings = None,
    gpu: options.GpuName = options.DEFAULT_GPU_NAME,
    torch: options.TorchVersion = None,
    env: options.Environment = None,
    assume: options.Assume = None,
    strict: options.Strict = False,
    compile: options.Compile = None,
    autocast: options.Autocast = None,
    optimizer: options.Optimizer = None,
    grads: options.Grads = "none",
    steps: options.Steps = options.DEFAULT_STEPS,
    inference: options.Inference = False,
    freeze: options.Freeze = None,
    timeout: options.Timeout = None,
    output_format: options.Format = "text",
    output: options.Output = None,
    html: options.Html = None,
    save: options.Save = None,
    verbose: options.Verbose = False,
    brief: options.Brief = False,
) -> None:
    """Report a training step's peak GPU memory, when it occurs and what holds it.

    build() returns a model with its inputs, (model, inputs, loss_fn), or a graphmem.TrainingStep.
    It runs on this machine, on tensors without data: no GPU is needed.

    Example: graphmem analyze fixtures/gpt2.py:build --set batch=8 --gpu h100 --autocast bf16
    """
    from graphmem.analysis import Request, run_analysis
    from graphmem.changes import Changes
    from graphmem.time_limit import time_limit

    request = Request(
        gpu=gpu,
        torch=torch,
        env=options.pairs(env, "--env"),
        assume=tuple(assume or ()),
        strict=strict,
        compile=compile,
        worst_routing=True,
        autocast=autocast,
        optimizer=optimizer,
        grads=grads,
        steps=steps,
        inference=inference,
        settings=options.pairs(settings, "--set"),
        changes=Changes(freeze=tuple(freeze or ())),
    )
    with progress() as report_progress:
        with time_limit(timeout):
            analysis = run_analysis(target, request, report_progress)
        keep(analysis, html, save, report_progress)
    report = analysis.report
    from graphmem.report.text import print_brief, print_report

    show = print_brief if brief else partial(print_report, verbose=verbose)
    put_result(output_format, output, report.to_json, partial(show, report))
    if isinstance(gpu, options.AssumedCard):
        hint_at_cards(report.runtime.title)
