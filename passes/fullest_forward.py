"""The forward pass that the others describe, found once for all (graphmem/forward_passes.py)."""

from __future__ import annotations

from graphmem.forward_passes import fullest_forward
from graphmem.graph import StepGraph
from graphmem.pipeline import Annotations, Pass
from graphmem.runtime import Runtime


def find_fullest_forward(
    graph: StepGraph, runtime: Runtime, annotations: Annotations
) -> int | None:
    """Find the index of its phase; None without a forward phase."""
    return fullest_forward(graph)


FULLEST_FORWARD = Pass(provides="fullest_forward", run=find_fullest_forward)
