"""What PyTorch's compiler made of a program: graphs, what it fused and recomputes, and breaks."""

from __future__ import annotations

from dataclasses import dataclass, field

from graphmem.graph import Source

PADDING = "whether a product of unaligned matrices is padded by the compiler"
GRAPHS_LEFT_OUT = "a CUDA graph"
"""What is assumed of compiled code, and told beside the peak."""


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """A graph that Inductor compiled, once, however often it runs.

    Attributes:
        is_backward: whether it is the backward pass of another.
        results: how many tensors its operations compute, views left out.
        fused: how many of them only exist inside of kernels.
        fused_bytes: their bytes; of dynamic shapes, those of the first call.
        recomputed: how many a backward graph computes that the forward graph computed before.
        recomputed_bytes: their bytes.
    """

    is_backward: bool
    results: int
    fused: int
    fused_bytes: int
    recomputed: int
    recomputed_bytes: int


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """A place where Dynamo ends a graph and Python goes on.

    Attributes:
        reason: Dynamo's, the first line.
        source: the program's line.
        results: how many tensors the graph before it passes on.
        nbytes: their bytes.
    """

    reason: str
    source: Source | None
    results: int
    nbytes: int


@dataclass(slots=True)
class CompiledCode:
    """All that was compiled, in order.

    Attributes:
        graphs: the graphs.
        breaks: where they end.
        is_timed: whether the configurations of a kernel were timed, as in a first run.
    """

    graphs: list[CompiledGraph] = field(default_factory=list)
    breaks: list[GraphBreak] = field(default_factory=list)
    is_timed: bool = False
