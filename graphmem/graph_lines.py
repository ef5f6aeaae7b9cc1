"""The step graph as text, one line per operation, stable between runs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from graphmem.graph import Op, StepGraph, TensorOut


def lines_of(graph: StepGraph) -> Iterator[str]:
    """The lines of `graphmem graph`, with a comment where a phase begins."""
    names = graph.nodes.names()
    for phase, ops in groupby(graph.ops, lambda op: op.phase):
        where = graph.phases[phase]
        yield f"# step {where.step} {where.name}" if where.step >= 0 else f"# {where.name}"
        yield from (_line(graph, op, names[op]) for op in ops)


def _line(graph: StepGraph, op: Op, name: str) -> str:
    outputs = ", ".join(_output(graph, op, output) for output in op.outputs) or "-"
    where = f"{op.module or '-'}  {op.source or '-'}  {op.autograd_node or '-'}"
    return f"%{name} = {op.target}  {outputs}  {where}"


def _output(graph: StepGraph, op: Op, output: TensorOut) -> str:
    shape = "x".join(map(str, output.shape)) or "scalar"
    if output.storage is None:
        return f"{output.dtype}[{shape}]"
    storage = graph.storages[output.storage]
    new = f" {storage.nbytes}B" if output.storage in op.births else ""
    return f"{output.dtype}[{shape}]{new} s{output.storage}"
