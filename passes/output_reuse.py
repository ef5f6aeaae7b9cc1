"""What activation functions keep for their derivatives, at what cost, and the saving of a swap.

Clauses, at the end of the fullest forward pass (graphmem/forward_passes.py):
  (1) an activation's derivative is *written in its output* if its formula in derivatives.yaml needs
      `result`, and *in its input* if it needs `self`; some in-place operators differ from their
      out-of-place forms (`leaky_relu_`);
  (2) the tensor it keeps *costs* its bytes, unless another node holds the same storage: the next
      layer's input is the activation's output, so a derivative written in the output is free;
  (3) *exchanging* it for one that is written in its output, such as ReLU or tanh, saves that cost,
      minus the output's bytes if no other node holds the output.

An in-place activation on a view keeps its output inside `CopySlices`, where it cannot be seen.
Not covered: activations that a program composes from other operations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from graphmem.annotations import FULLEST_FORWARD, SAVED_TENSORS
from graphmem.graph import Op, Source, StepGraph
from graphmem.pipeline import Annotations, Pass
from graphmem.runtime import Runtime
from graphmem.units import counted, format_bytes

from . import derivatives
from .saved_tensors import Saved, SavedTensors

ACTIVATIONS = frozenset(
    "relu gelu silu tanh sigmoid leaky_relu elu celu selu hardtanh hardswish hardsigmoid mish "
    "softplus threshold log_sigmoid_forward relu6".split()
)


@dataclass(frozen=True, slots=True)
class Activation:
    """One activation of the fullest forward pass.

    Attributes:
        op: index of its operation.
        name: such as `gelu`, or `leaky_relu_` for the in-place one.
        module, source: where it is.
        written_in: "output" or "input" (clause 1).
        costs_bytes: see clause (2).
        exchange_saves_bytes: see clause (3).
    """

    op: int
    name: str
    module: str
    source: Source | None
    written_in: str
    costs_bytes: int
    exchange_saves_bytes: int


@dataclass(frozen=True)
class OutputReuse:
    """The activations, in execution order."""

    activations: tuple[Activation, ...]

    def report_lines(self) -> Iterator[str]:
        """Yield one line for each function that keeps a tensor nothing else needs."""
        by_name = defaultdict[str, list[Activation]](list)
        for each in self.activations:
            by_name[each.name].append(each)
        for name, found in by_name.items():
            saves = sum(each.exchange_saves_bytes for each in found)
            if saves > 0:
                costs = sum(each.costs_bytes for each in found)
                yield (
                    f"{name} ({counted(len(found), 'call')}) keeps its {found[0].written_in}, "
                    f"{format_bytes(costs)}; an activation whose derivative uses its output, such "
                    f"as relu or tanh, would save {format_bytes(saves)}"
                )


def find_output_reuse(graph: StepGraph, runtime: Runtime, annotations: Annotations) -> OutputReuse:
    """Find every activation that autograd differentiates in the fullest forward pass."""
    saved: SavedTensors = annotations.of(SAVED_TENSORS)
    forward = annotations.of(FULLEST_FORWARD)
    if forward is None:
        return OutputReuse(())
    tick = graph.phases[forward].end
    by_op = {each.op: saved.by_node[each.number] for each in graph.autograd_nodes if each.saved}
    return OutputReuse(
        tuple(
            _activation(graph, op, by_op.get(op.index, ()), saved, tick)
            for op in graph.ops
            if op.phase == forward
            and _name(op).rstrip("_") in ACTIVATIONS
            and (op.index in by_op or _name(op).endswith("_"))
        )
    )


def _name(op: Op) -> str:
    return op.target.removeprefix("aten.").partition(".")[0]


def _activation(
    graph: StepGraph, op: Op, held: tuple[Saved, ...], saved: SavedTensors, tick: int
) -> Activation:
    derivative = derivatives.of_operator(op.target)
    in_output = derivative is not None and bool(derivative.needing("result"))
    number = held[0].node if held else None

    def held_by_others(storage: int | None) -> bool:
        return storage is not None and any(
            other.node != number for other in saved.holding(storage, tick)
        )

    own = {each.storage for each in held if each.storage is not None}
    costs = sum(graph.storages[id_].nbytes for id_ in own if not held_by_others(id_))
    output = op.outputs[0].storage
    would_cost = 0 if output is None or held_by_others(output) else graph.storages[output].nbytes
    return Activation(
        op=op.index,
        name=_name(op),
        module=op.module,
        source=op.source,
        written_in="output" if in_output else "input",
        costs_bytes=costs,
        exchange_saves_bytes=0 if in_output else costs - would_cost,
    )


OUTPUT_REUSE = Pass(
    provides="output_reuse", run=find_output_reuse, requires=("fullest_forward", "saved_tensors")
)
