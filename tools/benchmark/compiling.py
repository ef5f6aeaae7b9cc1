"""Analyses of compiled models, relative to what the compiler takes by itself.

`cold` and `warm` are trace and simulation without and with what an earlier analysis made. The
compiler runs as it is, and with the room for its frames that an analysis has (`data_stack.py`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial

import torch

from graphmem import TrainingStep
from graphmem.data_stack import with_room
from graphmem.environment import environment
from graphmem.gpus import find_gpu
from graphmem.private_cache import FOLDER
from graphmem.simulate import simulate
from tools.benchmark.bare_compiler import compile_barely
from tools.benchmark.part import GPU, Part, Row, seconds_of, without_collector
from tools.benchmark.recording import run_traced
from tools.benchmark.steps import Build, decoder, gpt2

MODELS: dict[str, Build] = {"GPT-2 small": gpt2, "decoder, 12 layers": partial(decoder, 12)}
MOST_RUNS = 2  # each takes as long as a hundred others


def rows(repeat: int) -> Iterator[Row]:
    """Take turns; each cold run has an empty cache."""
    for model, build in MODELS.items():
        runs: dict[str, list[float]] = {kind: [] for kind in ("bare", "roomy", "cold", "warm")}
        for _ in range(min(repeat, MOST_RUNS) + 1):  # the first imports the compiler
            with tempfile.TemporaryDirectory() as folder, environment({FOLDER: f"{folder}/cache"}):
                with without_collector():
                    step = partial(compiled, build)
                    runs["bare"].append(compile_barely(step, find_gpu(GPU)))
                    runs["roomy"].append(with_room(compile_barely)(step, find_gpu(GPU)))
                for kind in ("cold", "warm"):
                    runs[kind].append(_analysis(build))
        least = {kind: min(seconds[1:]) for kind, seconds in runs.items()}
        ratios = (("cold", "bare"), ("cold", "roomy"), ("warm", "bare"))
        cells = (
            model,
            *(f"{seconds:.1f} s" for seconds in least.values()),
            *(f"{least[this] / least[that]:.2f}" for this, that in ratios),
        )
        yield Row(cells, {"model": model, **runs})


def compiled(build: Build) -> TrainingStep:
    """The same step with its model compiled."""
    step = build()
    step.model = torch.compile(step.model)  # type: ignore[assignment]
    return step


def _analysis(build: Build) -> float:
    return seconds_of(lambda: simulate(run_traced(partial(compiled, build))))[0]


COMPILING = Part(
    (
        *("model", "the compiler alone", "with room", "cold", "warm"),
        *("cold to alone", "cold to with room", "warm to alone"),
    ),
    rows,
)
