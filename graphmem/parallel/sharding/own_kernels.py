"""The scratch memory of one rank's kernels, which run on smaller tensors than the traced ones.

A kernel chooses its scratch memory by the sizes of its operands, and often takes none for a small
one: a sum over 1,024 rows is divided among blocks, which need a staging buffer, one over 512 is not
(`passes/kernels/reduction.py`). So the rules of the pass `kernel_memory` are applied once more, to
each operation that the rank runs, with the rank's share of each tensor.

Clauses:
  (1) a tensor's sizes are those of its axes on the rank (`ShardSizes.own`); arguments that are
      numbers, such as the shape that a norm is given, stay as traced;
  (2) up to torch 2.14 a thread's first product takes the workspace of its cuBLAS handle: on a
      pipeline's stage that is the first product of the stage;
  (3) the optimizer's operations keep what the trace has, scaled like their results, and so does
      everything under expert parallelism, where a rank has the tokens of others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import structs

from graphmem.annotations import KERNEL_MEMORY
from graphmem.graph import Op, StepGraph, TensorOut
from graphmem.kernel_program import OnlineRules, Program, thread_of
from graphmem.nodes import Input, Item, Node
from graphmem.parallel.axes.dimensions import Dimensions
from graphmem.parallel.layout import Layout
from graphmem.parallel.rank.rank import WALKED
from graphmem.parallel.sharding.shard_sizes import ShardSizes
from graphmem.pipeline import online_pass
from graphmem.runtime import Runtime


def has_own_kernels_under(layout: Layout) -> bool:
    """Whether a layout's ranks run kernels on other sizes, or not all of them (clause 3)."""
    split = layout.tensor * layout.context * layout.micro_batches * layout.pipeline
    return split > 1 and layout.expert == 1


def own_programs(
    graph: StepGraph,
    dimensions: Dimensions,
    shares: ShardSizes,
    runs: Callable[[Op], bool],
    runtime: Runtime,
) -> dict[int, Program]:
    """The kernel programs of one rank's operations.

    Args:
        graph: the trace.
        dimensions: its axes.
        shares: the rank's share of each tensor.
        runs: whether the rank runs an operation of the forward or backward passes.
        runtime: the card.
    """
    rules: OnlineRules = online_pass(KERNEL_MEMORY.name, runtime)
    rules.know_workspaces(graph)
    found = {}
    for op in graph.ops:
        is_walked = graph.phases[op.phase].name in WALKED
        if is_walked and not runs(op):
            continue
        own = _own_op(op, dimensions, shares) if is_walked else op
        program = rules.program_of(own, thread_of(graph, op))
        if program is not None:
            found[op.index] = program
    return found


def _own_op(op: Op, dimensions: Dimensions, shares: ShardSizes) -> Op:
    """An operation on the rank's tensors (clause 1)."""

    def own(tensor: TensorOut, node: Node, number: int) -> TensorOut:
        axes = dimensions.of_tensor.get((node, number))
        return tensor if axes is None else shares.own(tensor, axes)

    def own_argument(value: Any) -> Any:
        if isinstance(value, Node):
            return _described(value, own)
        if isinstance(value, (list, tuple)):
            return type(value)(map(own_argument, value))
        return value

    arguments = tuple(map(own_argument, op.args))
    named: Mapping[str, Any] = {name: own_argument(value) for name, value in op.kwargs.items()}
    outputs = tuple(own(each, op, i) for i, each in enumerate(op.outputs))
    return structs.replace(op, args=arguments, kwargs=named, outputs=outputs)


def _described(node: Node, own: Callable[[TensorOut, Node, int], TensorOut]) -> Input:
    """A node that stands for the rank's share of a tensor."""
    if node.tensor is None:
        return Input(())
    home, number = node.args if isinstance(node, Item) else (node, 0)
    return Input((), own(node.tensor, home, number))
