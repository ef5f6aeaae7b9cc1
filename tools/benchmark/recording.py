"""Three iterations, traced and simulated, beside the same iterations on bare fake tensors.

The bare run is the floor: the same `build()` and training loop, for as many iterations, in the fake
mode of the trace, on the CPU with PyTorch's own autograd engine, recording nothing. `whole` is the
analysis with its passes and report. `values` is how much tracking known values adds to the trace.
All runs take turns in one process with warm caches, as a command's is: the collector is off, and
what was imported is set aside. Ratios are of pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Any

import torch

from graphmem.analysis import Request, run_analysis
from graphmem.caller import clean_turn
from graphmem.gpus import find_gpu
from graphmem.graph import StepGraph
from graphmem.own_process import own_process
from graphmem.simulate import simulate
from graphmem.trace import TraceOptions, trace
from graphmem.trace.loop import TrainingLoop
from graphmem.values.known import KnownValues
from graphmem.virtual_device import fake_cpu
from graphmem.virtual_device.fake_mode import VirtualFakeMode
from tools.benchmark.part import GPU, Part, Row, ratios_of, seconds_of, spread
from tools.benchmark.steps import DECODER_LAYERS, ITERATIONS, Build, decoder, gpt2

MODELS: dict[str, Build] = {
    "GPT-2 small": gpt2,
    **{f"decoder, {layers} layers": partial(decoder, layers) for layers in DECODER_LAYERS},
}


def rows(repeat: int) -> Iterator[Row]:
    """One row for each model, in order of size."""
    with own_process():
        for model, build in MODELS.items():
            yield measure(model, build, repeat)


def measure(model: str, build: Build, repeat: int) -> Row:
    """Warm up all kinds of run, then take turns."""
    operations = len(run_traced(build).ops)
    run_bare(build)
    bare, recorded, whole, traced, valueless = [], [], [], [], []
    for _ in range(repeat):
        bare.append(seconds_of(partial(run_bare, build))[0])
        seconds, graph = seconds_of(partial(run_traced, build))
        traced.append(seconds)
        recorded.append(seconds + seconds_of(partial(simulate, graph))[0])
        del graph
        whole.append(seconds_of(partial(run_whole, build))[0])
        valueless.append(seconds_of(partial(run_valueless, build))[0])
    to_bare = ratios_of(recorded, bare)
    whole_to_bare = ratios_of(whole, bare)
    values = min(traced) / min(valueless) - 1
    cells = (
        *(model, f"{operations:,}", f"{min(bare):.2f} s", f"{min(recorded):.2f} s"),
        *spread(to_bare),
        f"{median(whole_to_bare):.2f}",
        f"{100 * values:+.0f} %",
        f"{1e6 * min(recorded) / operations:.0f}",
    )
    figures = {
        "model": model,
        "operations": operations,
        "bare_seconds": bare,
        "recorded_seconds": recorded,
        "whole_seconds": whole,
        "ratios": to_bare,
        "whole_ratios": whole_to_bare,
        "values_share": values,
    }
    return Row(cells, figures)


def run_traced(build: Build) -> StepGraph:
    """What `graphmem analyze` does up to the step graph."""
    with clean_turn():
        return trace(build, gpu=find_gpu(GPU), options=TraceOptions(steps=ITERATIONS))


def run_whole(build: Build) -> Any:
    """What `graphmem analyze` does up to the report."""
    return run_analysis(build, Request(gpu=GPU, steps=ITERATIONS)).report


def run_valueless(build: Build) -> StepGraph:
    """The same trace without known values, which these models never read."""
    follow = KnownValues.follow
    KnownValues.follow = lambda *args: None  # type: ignore[method-assign]
    try:
        return run_traced(build)
    finally:
        KnownValues.follow = follow  # type: ignore[method-assign]


def run_bare(build: Build) -> None:
    """The same iterations on fake tensors only.

    `fake_cpu` lets `model.to` work on fake parameters, and does nothing to operations.
    """
    mode = VirtualFakeMode()
    with fake_cpu(mode), mode:
        loop = TrainingLoop(build(), torch.device("cpu"))
        loop.prepare()
        for _ in range(ITERATIONS):
            loop.iterate()


RECORDING = Part(
    (
        *("model", "operations", "bare", "trace + simulate"),
        *("ratio: least", "median", "most", "whole", "values", "µs an operation"),
    ),
    rows,
)
