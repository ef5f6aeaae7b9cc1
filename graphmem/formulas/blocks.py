"""A transformer's blocks in a traced step, found through its attention operations.

An *attention operation* is, in the last forward pass, a `_scaled_dot_product_*` operator, or a
softmax over the last dimension of a tensor (batch, heads, queries, keys) or (batch x heads,
queries, keys) whose result goes into a batched product; a router's softmax does not.

A *block* is the outermost numbered module (`h.3`, `encoder.layer.0`, `encoder_layer_0`) around an
attention operation that is not just a container (`Sequential`, `ModuleList`); without one, the
whole model is one block. Blocks whose names differ only in the last number are a *stack*.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod

from graphmem.graph import Op, PhaseName, StepGraph, TensorOut
from graphmem.nodes import Node, Users

_CONTAINERS = frozenset({"Sequential", "ModuleList", "ModuleDict"})
_PRODUCTS = ("aten.bmm.", "aten.baddbmm.")
_PASSING = tuple(
    f"aten.{name}."
    for name in "_to_copy clone expand view _unsafe_view reshape native_dropout mul detach".split()
)
_NUMBERED = re.compile(r"(.*?)(\d+)$")


@dataclass(frozen=True)
class Attention:
    """One attention operation, with the shape of its scores.

    Attributes:
        op: the operator itself, or the softmax.
        shape: (batch, heads, queries, keys), or (batch x heads, queries, keys).
        fused: whether scores exist only inside the operator.
    """

    op: Op
    shape: tuple[int, ...]
    fused: bool


@dataclass(frozen=True)
class ModelBlocks:
    """The blocks of a step graph.

    Attributes:
        paths: the modules' paths, in order; `""` if the whole model is one block.
        attention: the attention operations of the last forward pass.
    """

    paths: tuple[str, ...]
    attention: tuple[Attention, ...]

    @cached_property
    def stacks(self) -> dict[str, int]:
        """The number of blocks in each stack, by the common part of their paths."""
        found: dict[str, int] = {}
        for path in self.paths:
            stack = _NUMBERED.sub(r"\1", path).rstrip("._")
            found[stack] = found.get(stack, 0) + 1
        return found

    def contain(self, module: str) -> bool:
        """Whether a module is a block or inside one."""
        return any(
            f"{module}.".startswith(f"{path}.") if path else bool(module) for path in self.paths
        )

    def name_within(self, module: str) -> str | None:
        """The path of a module relative to its block; None outside of blocks."""
        for path in self.paths:
            if path and module.startswith(f"{path}."):
                return module.removeprefix(f"{path}.")
        return module if module and "" in self.paths else None

    def like_softmax(self, shape: Sequence[int]) -> bool:
        """Whether a tensor is as large as the scores of unfused attention."""
        return (tuple(shape[-2:]), prod(shape)) in self._scores

    @cached_property
    def _scores(self) -> frozenset[tuple[tuple[int, ...], int]]:
        shapes = (each.shape for each in self.attention if not each.fused)
        return frozenset((shape[-2:], prod(shape)) for shape in shapes)


def find_blocks(graph: StepGraph) -> ModelBlocks:
    """Find the blocks that contain the attention operations of the last forward pass."""
    attention = tuple(_attention(graph))
    paths = dict.fromkeys(_block_of(each.op.module, graph) for each in attention)
    return ModelBlocks(tuple(paths), attention)


def last_forward(graph: StepGraph) -> list[Op]:
    """The operations of the last iteration's forward phases."""
    return [
        op
        for op in graph.ops
        if graph.phases[op.phase].name is PhaseName.FORWARD
        and graph.phases[op.phase].step == graph.steps - 1
    ]


def operand(op: Op, position: int) -> TensorOut | None:
    """The tensor argument of an operation at a position."""
    node = op.args[position] if position < len(op.args) else None
    return node.tensor if isinstance(node, Node) else None


def _attention(graph: StepGraph) -> Iterator[Attention]:
    users = graph.nodes.users()
    for op in last_forward(graph):
        if op.target.startswith("aten._scaled_dot_product_"):
            queries, keys = operand(op, 0), operand(op, 1)
            if queries is not None and keys is not None:
                yield Attention(op, (*queries.shape[:-1], keys.shape[-2]), fused=True)
        elif op.target.startswith(("aten._softmax", "aten._safe_softmax")):
            shape = op.outputs[0].shape
            over_last = op.args[1] in (-1, len(shape) - 1)
            if len(shape) in (3, 4) and over_last and _goes_into_product(op, users):
                yield Attention(op, shape, fused=False)


def _goes_into_product(node: Node, users: Users) -> bool:
    """Whether a batched product uses a tensor, possibly after casts, views and dropout."""
    seen, waiting = set[object](), [node]
    while waiting:
        each = waiting.pop()
        op = each if isinstance(each, Op) else None
        if op is not None and op.target.startswith(_PRODUCTS):
            return True
        if each is node or op is None or op.target.startswith(_PASSING):
            waiting += [user for user in users.get(each, ()) if user not in seen]
            seen.update(users.get(each, ()))
    return False


def _block_of(module: str, graph: StepGraph) -> str:
    names = module.split(".")
    for path in accumulate(names, lambda path, name: f"{path}.{name}"):
        numbered = _NUMBERED.search(path.rpartition(".")[2])
        if numbered and graph.modules.get(path) not in _CONTAINERS:
            return path
    return ""
