"""The steps that are measured."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from graphmem import TrainingStep
from tools.benchmark.part import ROOT

Build = Callable[[], TrainingStep]

FIXTURES = ROOT / "fixtures"
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
DECODER_LAYERS = (12, 24)


def gpt2() -> TrainingStep:
    """GPT-2 small with the defaults of its fixture."""
    step: TrainingStep = _fixture("gpt2").build()
    return step


def gpt2_in_32_bits() -> TrainingStep:
    """GPT-2 small without autocast: what every predictor can be given."""
    step = gpt2()
    step.autocast = None
    step.optimizer = partial(torch.optim.AdamW, lr=3e-4, foreach=True)
    return step


def decoder(layers: int, **sizes: Any) -> TrainingStep:
    """A narrow decoder: width costs nothing on fake tensors, layers do.

    All runs execute the same operations: AdamW's foreach path, the default on CUDA but not on the
    CPU, is requested, and the norm is written out because only CUDA has a kernel for it.
    """
    step: TrainingStep = _fixture("llama").build(layers=layers, **DECODER, **sizes)
    step.optimizer = partial(torch.optim.AdamW, lr=3e-4, foreach=True)
    return step


def perceptron() -> TrainingStep:
    """Two linear layers under AdamW: iterations of 42 operations."""
    step: TrainingStep = _fixture("mlp").build(d_model=64)
    step.optimizer = partial(torch.optim.AdamW, lr=3e-4)
    return step


def _fixture(name: str) -> Any:
    if str(FIXTURES) not in sys.path:
        sys.path.append(str(FIXTURES))  # fixtures import their siblings
    return importlib.import_module(name)
