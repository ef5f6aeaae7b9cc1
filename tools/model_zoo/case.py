"""A case of `tools/breadth.py`: a named training step with reproducible random numbers."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from graphmem import TrainingStep

SEED = 7


@dataclass(frozen=True)
class Case:
    """One model or construct.

    Attributes:
        family: where it comes from, such as "transformers".
        name: its name there.
        build: makes the training step; it draws the same random numbers at each call.
        amend: given the error of the real step; returns whether `build` makes another step now.
    """

    family: str
    name: str
    build: Callable[[], TrainingStep]
    amend: Callable[[str], bool] = lambda message: False


def seeded(build: Callable[[], Any]) -> Callable[[], TrainingStep]:
    """A `build` whose random numbers do not change from call to call, without dropout.

    Dropout cannot be compared: the CPU keeps its mask as floats and CUDA as booleans.
    """

    def make() -> TrainingStep:
        random.seed(SEED)
        numpy.random.seed(SEED)
        torch.manual_seed(SEED)
        made = build()
        step = made if isinstance(made, TrainingStep) else TrainingStep(*made)
        if step.model is not None:
            without_dropout(step.model)
        if step.optimizer is None and step.step is None:
            step.optimizer = torch.optim.AdamW
        return step

    return make


def without_dropout(model: torch.nn.Module) -> None:
    """Switch dropout and stochastic depth off."""
    for module in model.modules():
        for name in ("p", "drop_prob", "dropout", "attn_drop", "layerdrop"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
