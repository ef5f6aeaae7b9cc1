"""Programs that read values of the virtual card."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from graphmem.gpus import find_gpu
from graphmem.graph import StepGraph
from graphmem.trace import TraceOptions, trace
from graphmem.training_step import TrainingStep

Program = Callable[[torch.device], Any]


def on_card(program: Program, **options: Any) -> tuple[Any, StepGraph]:
    """A program's result on the virtual card, and the graph of its trace."""
    returned: list[Any] = []
    step = TrainingStep(step=lambda: returned.append(program(torch.device("cuda"))))
    graph = trace(lambda: step, gpu=find_gpu("a100-80gb"), options=TraceOptions(steps=1, **options))
    return returned[0], graph
