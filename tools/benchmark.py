"""graphmem's speed: trace and simulate, compared with the same step on bare fake tensors.

    python -m tools.benchmark [--repeat N] [--json FILE]

The bare run is the floor: the same `build()` and training loop, for as many iterations, in the fake
mode of the trace, on the CPU with PyTorch's own autograd engine, recording nothing. `values` is how
much tracking known values adds to the trace, compared with a trace that tracks none. All runs take
turns in this process with warm caches and without the cycle collector (which would slow down the
bare run and flatter the ratio); each figure is the minimum of N, in seconds of CPU time, so that
the machine's other work is not counted, and no run uses a second thread.

Models are also compiled (docs/compile.md): `cold` and `warm` are trace and simulation without and
with what an earlier analysis made, relative to the compiler alone (`tools/bare_compiler.py`).
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from graphmem import TrainingStep
from graphmem.analysis import Request
from graphmem.caller import collect
from graphmem.caller.environment import environment
from graphmem.gate.jobs import Job
from graphmem.gate.watching import Watcher
from graphmem.gpus import find_gpu
from graphmem.graph import StepGraph
from graphmem.own_process import own_process
from graphmem.private_cache import FOLDER
from graphmem.simulate import simulate
from graphmem.trace import TraceOptions, trace
from graphmem.trace.loop import TrainingLoop
from graphmem.values.known import KnownValues
from graphmem.virtual_device import fake_cpu
from graphmem.virtual_device.fake_mode import VirtualFakeMode
from tools.bare_compiler import compile_barely

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
GPU = "A100"
ITERATIONS = 3
DECODER: dict[str, Any] = {
    "vocab": 1000,
    "seq": 128,
    "width": 64,
    "heads": 8,
    "kv_heads": 2,
    "ffn": 176,
    "norm": "written_out",
}
DECODER_LAYERS = (12, 24, 48, 126)

Build = Callable[[], TrainingStep]
COMPILED_REPEAT = 2  # a run takes as long as a hundred others


@dataclass(frozen=True)
class Measurement:
    """The least seconds of each kind of run, for one model."""

    model: str
    operations: int
    bare_operations: int
    trace_seconds: float
    valueless_seconds: float
    simulate_seconds: float
    bare_seconds: float

    @property
    def seconds(self) -> float:
        """Trace and simulate."""
        return self.trace_seconds + self.simulate_seconds

    @property
    def ratio(self) -> float:
        """Duration relative to bare execution."""
        return self.seconds / self.bare_seconds

    @property
    def values_share(self) -> float:
        """How much longer a trace takes because it follows known values."""
        return self.trace_seconds / self.valueless_seconds - 1

    @property
    def operations_per_second(self) -> float:
        """Traced operations per second."""
        return self.operations / self.seconds

    @property
    def microseconds_per_operation(self) -> float:
        """The inverse, to compare models by size."""
        return 1e6 * self.seconds / self.operations


@dataclass(frozen=True)
class CompiledMeasurement:
    """The least seconds of each kind of run, for one compiled model."""

    model: str
    cold_seconds: float
    warm_seconds: float
    bare_seconds: float

    def __str__(self) -> str:
        bare = self.bare_seconds
        return (
            f"{self.model}, compiled: cold {self.cold_seconds:.2f} s, "
            f"warm {self.warm_seconds:.2f} s, the compiler alone {bare:.2f} s: "
            f"ratios {self.cold_seconds / bare:.2f} and {self.warm_seconds / bare:.2f}"
        )


def gpt2() -> TrainingStep:
    """GPT-2 small with the defaults of its fixture."""
    step: TrainingStep = _fixture("gpt2").build()
    return step


def decoder(layers: int) -> TrainingStep:
    """A narrow decoder: width costs nothing on fake tensors, layers do.

    Both runs execute the same operations: AdamW's foreach path, the default on CUDA but not on the
    CPU, is requested, and the norm is written out because only CUDA has a kernel for it.
    """
    step: TrainingStep = _fixture("llama").build(layers=layers, **DECODER)
    step.optimizer = partial(torch.optim.AdamW, lr=3e-4, foreach=True)
    return step


def _fixture(name: str) -> Any:
    if str(FIXTURES) not in sys.path:
        sys.path.append(str(FIXTURES))  # fixtures import their siblings
    return importlib.import_module(name)


def run_traced(build: Build) -> StepGraph:
    """What `graphmem analyze` does up to the step graph."""
    return trace(build, gpu=find_gpu(GPU), options=TraceOptions(steps=ITERATIONS))


def run_valueless(build: Build) -> StepGraph:
    """The same trace without known values, which these models never read."""
    follow = KnownValues.follow
    KnownValues.follow = lambda *args: None  # type: ignore[method-assign]
    try:
        return run_traced(build)
    finally:
        KnownValues.follow = follow  # type: ignore[method-assign]


def run_bare(build: Build, watch: AbstractContextManager[Any] | None = None) -> None:
    """The same iterations on fake tensors only.

    `fake_cpu` lets `model.to` work on fake parameters, and does nothing to operations.
    """
    mode = VirtualFakeMode()
    with fake_cpu(mode), mode, watch or nullcontext():
        loop = TrainingLoop(build(), torch.device("cpu"))
        loop.prepare()
        for _ in range(ITERATIONS):
            loop.iterate()


class _Counter(TorchDispatchMode):
    """Counts dispatched operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is not torch.ops.prim.device.default
        return func(*args, **(kwargs or {}))


def count_bare_operations(build: Build) -> int:
    """The number of operations of the bare run, not counting the accessor `Tensor.device`."""
    counter = _Counter()
    run_bare(build, counter)
    return counter.count


def measure(model: str, build: Build, repeat: int) -> Measurement:
    """Warm up both kinds of run, then take turns."""
    operations = len(run_traced(build).ops)
    bare_operations = count_bare_operations(build)
    traced, valueless, simulated, bare = [], [], [], []
    for _ in range(repeat):
        bare.append(_seconds(partial(run_bare, build))[0])
        seconds, graph = _seconds(partial(run_traced, build))
        traced.append(seconds)
        valueless.append(_seconds(partial(run_valueless, build))[0])
        simulated.append(_seconds(partial(simulate, graph))[0])
        del graph
    return Measurement(
        model=model,
        operations=operations,
        bare_operations=bare_operations,
        trace_seconds=min(traced),
        valueless_seconds=min(valueless),
        simulate_seconds=min(simulated),
        bare_seconds=min(bare),
    )


def _seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    with _without_collector():
        start = time.process_time()
        result = run()
        return time.process_time() - start, result


@contextmanager
def _without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


HEADER = (
    *("model", "ops", "bare ops", "trace", "values", "simulate", "bare", "ratio", "ops/s", "us/op"),
)


def row(measured: Measurement) -> tuple[str, ...]:
    """One line of the table."""
    return (
        measured.model,
        f"{measured.operations:,}",
        f"{measured.bare_operations:,}",
        f"{measured.trace_seconds:.3f} s",
        f"{100 * measured.values_share:+.1f} %",
        f"{measured.simulate_seconds:.3f} s",
        f"{measured.bare_seconds:.3f} s",
        f"{measured.ratio:.2f}",
        f"{measured.operations_per_second:,.0f}",
        f"{measured.microseconds_per_operation:.1f}",
    )


def print_row(cells: tuple[str, ...]) -> None:
    """Left-align the model's name, right-align the figures."""
    print(f"{cells[0]:<22}" + "".join(f"{cell:>11}" for cell in cells[1:]), flush=True)


def watch_seconds(repeat: int) -> float:
    """The least CPU seconds in which `graphmem watch` analyses GPT-2 again, report included."""
    target = f"{FIXTURES / 'gpt2.py'}:build"
    watcher = Watcher(Job(target, FIXTURES, target, Request(gpu=GPU, steps=ITERATIONS)))
    seconds = []
    with own_process():
        watcher.analyse()
        for _ in range(repeat):
            collect()  # as while it waits
            seconds.append(_seconds(watcher.analyse)[0])
    return min(seconds)


def compiled(build: Build) -> TrainingStep:
    """The same step with its model compiled."""
    step = build()
    step.model = torch.compile(step.model)  # type: ignore[assignment]
    return step


def measure_compiled(model: str, build: Build, repeat: int) -> CompiledMeasurement:
    """Take turns; each cold run has an empty cache."""
    build = partial(compiled, build)
    cold: list[float] = []
    warm: list[float] = []
    bare: list[float] = []
    for _ in range(repeat + 1):  # the first imports the compiler
        with tempfile.TemporaryDirectory() as folder, environment({FOLDER: f"{folder}/cache"}):
            bare.append(_collected(partial(compile_barely, build, find_gpu(GPU))))
            for seconds in (cold, warm):
                seconds.append(_seconds(lambda: simulate(run_traced(build)))[0])
    return CompiledMeasurement(model, min(cold[1:]), min(warm[1:]), min(bare[1:]))


def _collected(run: Callable[[], float]) -> float:
    with _without_collector():
        return run()


def main() -> None:
    """Measure, print, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--repeat", type=int, default=5, help="take the minimum of N runs")
    parser.add_argument(
        "--layers",
        type=int,
        nargs="*",
        default=DECODER_LAYERS,
        help="numbers of layers of the decoders",
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # values are computed on the CPU, where waiting threads take time
    builds: list[tuple[str, Build]] = [
        ("gpt2 small", gpt2),
        *((f"decoder, {layers} layers", partial(decoder, layers)) for layers in arguments.layers),
    ]
    sizes = ", ".join(f"{name}={value}" for name, value in DECODER.items())
    print(f"{ITERATIONS} iterations, traced for an {GPU}; CPU seconds; decoder: {sizes}")
    print_row(HEADER)
    measurements = []
    for model, build in builds:
        measurements.append(measure(model, build, arguments.repeat))
        print_row(row(measurements[-1]))
    decoders = [each.microseconds_per_operation for each in measurements[1:]]
    if decoders:
        spread = max(decoders) / min(decoders)
        layers = ", ".join(map(str, arguments.layers))
        print(f"time per operation, {layers} layers: the slowest {spread:.2f} x the fastest")
    seconds = watch_seconds(arguments.repeat)
    print(f"graphmem watch, gpt2 small, from a save to the answer: {seconds:.2f} s")
    in_compiler = [
        measure_compiled(model, build, min(arguments.repeat, COMPILED_REPEAT))
        for model, build in builds[:2]
    ]
    print(*in_compiler, sep="\n")
    if arguments.json:
        figures = [asdict(each) | {"ratio": each.ratio} for each in measurements]
        figures += map(asdict, in_compiler)
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
