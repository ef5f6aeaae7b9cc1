"""`graphmem graph`: the step graph as text."""

from __future__ import annotations

from graphmem.cli import options
from graphmem.cli.output import progress, put


def graph(
    target: options.Target,
    settings: options.Settings = None,
    gpu: options.GpuName = options.DEFAULT_GPU_NAME,
    assume: options.Assume = None,
    autocast: options.Autocast = None,
    optimizer: options.Optimizer = None,
    grads: options.Grads = "none",
    steps: options.Steps = 1,
    inference: options.Inference = False,
    output: options.Output = None,
) -> None:
    """Print the step graph: every ATen operation in execution order, one line each.

    A line is: name = operation, its outputs as dtype[shape] with the bytes of a new storage and
    the storage's number, the module, the source line, and the autograd node.
    """
    from graphmem.analysis import Request, traced_step

    request = Request(
        gpu=gpu,
        autocast=autocast,
        optimizer=optimizer,
        grads=grads,
        assume=tuple(assume or ()),
        steps=steps,
        inference=inference,
        settings=options.pairs(settings, "--set"),
    )
    with progress() as report_progress:
        step = traced_step(target, request, report_progress)
    text = "".join(f"{line}\n" for line in step.graph.lines())
    put(text, output)
