"""A third-party pass: the operation that allocates most."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from graphmem.graph import StepGraph
from graphmem.pipeline import Annotations, Pass
from graphmem.runtime import Runtime
from graphmem.units import format_bytes


@dataclass(frozen=True)
class LargestOp:
    """The annotation."""

    target: str
    nbytes: int

    def report_lines(self) -> Iterator[str]:
        """The line of the report under the annotation's name."""
        yield f"{self.target} allocates {format_bytes(self.nbytes)}"


def find_largest_op(graph: StepGraph, runtime: Runtime, annotations: Annotations) -> LargestOp:
    """Find the largest operation without changing the graph."""
    nbytes, target = max(
        (sum(graph.storages[born].nbytes for born in op.births), op.target) for op in graph.ops
    )
    return LargestOp(target, nbytes)


LARGEST_OP = Pass(provides="largest_op", run=find_largest_op)
