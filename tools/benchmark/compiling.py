"""Analyses of compiled models, relative to what the compiler takes by itself.

`cold` and `warm` are trace and simulation without and with what an earlier analysis made.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial

import torch

from graphmem import TrainingStep
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
        cold, warm, bare = [], [], []
        for _ in range(min(repeat, MOST_RUNS) + 1):  # the first imports the compiler
            with tempfile.TemporaryDirectory() as folder, environment({FOLDER: f"{folder}/cache"}):
                with without_collector():
                    bare.append(compile_barely(partial(compiled, build), find_gpu(GPU)))
                cold.append(_analysis(build))
                warm.append(_analysis(build))
        least = {"cold": min(cold[1:]), "warm": min(warm[1:]), "bare": min(bare[1:])}
        cells = (
            *(model, f"{least['bare']:.1f} s", f"{least['cold']:.1f} s", f"{least['warm']:.1f} s"),
            *(f"{least[kind] / least['bare']:.2f}" for kind in ("cold", "warm")),
        )
        yield Row(cells, {"model": model, "bare": bare, "cold": cold, "warm": warm})


def compiled(build: Build) -> TrainingStep:
    """The same step with its model compiled."""
    step = build()
    step.model = torch.compile(step.model)  # type: ignore[assignment]
    return step


def _analysis(build: Build) -> float:
    return seconds_of(lambda: simulate(run_traced(partial(compiled, build))))[0]


COMPILING = Part(
    ("model", "the compiler alone", "cold", "warm", "cold ratio", "warm ratio"),
    rows,
)
