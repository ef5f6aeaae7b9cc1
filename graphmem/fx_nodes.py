"""The operation, tensor and arguments of a node of the step graph."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from graphmem.graph import Op, TensorOut

if TYPE_CHECKING:
    from torch.fx import Node


def op_of(node: Node) -> Op | None:
    """The operation of a node; None for an input, and for a `getitem` of one of several results."""
    op: Op | None = node.meta.get("op")
    return op


def tensor_of(node: Node) -> TensorOut | None:
    """The tensor that a node stands for; for an operation, its first result."""
    op = op_of(node)
    if op is not None:
        return op.outputs[0] if op.outputs else None
    tensor: TensorOut | None = node.meta.get("tensor")
    return tensor


def argument_of(node: Node, name: str) -> Any:
    """An argument by its name in the operator's schema, or its default; None if there is none."""
    if name in node.kwargs:
        return node.kwargs[name]
    position, default = _parameters(node.target).get(name, (len(node.args), None))
    return node.args[position] if position < len(node.args) else default


@cache
def _parameters(target: Any) -> dict[str, tuple[int, Any]]:
    """The position and the default of each of an operator's parameters, by name."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return {}
    return {
        argument.name: (position, argument.default_value)
        for position, argument in enumerate(schema.arguments)
    }
