"""Trace a step on a virtual card, and read its graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphmem import TrainingStep
from graphmem.gpus import find_gpu
from graphmem.graph import StepGraph
from graphmem.trace import TraceOptions, trace


def traced(step: Callable[[], Any], gpu: str = "t4") -> StepGraph:
    """The graph of one run of a step."""
    return trace(lambda: TrainingStep(step=step), gpu=find_gpu(gpu), options=TraceOptions(steps=1))


def targets(graph: StepGraph) -> list[str]:
    """The operations of a graph, in order."""
    return [op.target for op in graph.ops]
