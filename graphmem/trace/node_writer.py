"""Writes operations as nodes of the step graph, in execution order.

Every tensor remembers the node that made it; for parameters the writer does, because programs pass
a parameter's attributes on to its class (accelerate's `init_empty_weights`). A tensor that no
operation made gets an input, and one of several results gets its `getitem` when it is first used;
these nodes describe their tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.weak import WeakIdKeyDictionary

from graphmem.graph import TensorOut
from graphmem.nodes import NO_KEYWORDS, Node, NodeList
from graphmem.virtual_device.fake_mode import PLAIN
from graphmem.virtual_device.notes import NOTHING, Note

MadeBy = Node | tuple[Node, int]
"""The node that made a tensor, or the node and the tensor's position among its results."""

_INT = frozenset({int})
_SIZES: dict[tuple[int, ...], list[int]] = {}
_NOTED = frozenset({torch.Tensor, FakeTensor})


class NodeWriter:
    """Appends nodes to a graph's.

    Args:
        nodes: the nodes to extend.
        describe: describes a tensor that is not a direct output of an operation.
    """

    def __init__(self, nodes: NodeList, describe: Callable[[torch.Tensor], TensorOut]) -> None:
        self._nodes = nodes
        self._describe = describe
        self._makers = WeakIdKeyDictionary()  # of tensors of other classes

    def arguments(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """An operation's arguments, with nodes in place of tensors."""
        return self._to_nodes(args), self._to_nodes(kwargs) if kwargs else NO_KEYWORDS

    def results(self, node: Node, result: Any) -> Iterator[tuple[torch.Tensor, MadeBy]]:
        """The tensors that an operation returned, each with what made it."""
        if isinstance(result, torch.Tensor):
            yield result, node
        elif isinstance(result, (tuple, list)):
            for position, item in enumerate(result):
                if isinstance(item, torch.Tensor):
                    yield item, (node, position)
                elif isinstance(item, (tuple, list)):  # the weights' gradients of a cuDNN layer
                    several = self._nodes.item(node, position)
                    yield from ((tensor, (several, number)) for number, tensor in enumerate(item))

    def maker_of(self, tensor: torch.Tensor) -> MadeBy:
        """The node that made a tensor; an input if no operation did."""
        made_by = self._remembered(tensor)
        return self._node_of(tensor) if made_by is None else made_by

    def remember(self, tensor: torch.Tensor, node: MadeBy) -> None:
        """Note that a tensor is a node's result, or one of its results."""
        if type(tensor) in _NOTED:
            tensor._graphmem_node = Note(node)  # type: ignore[attr-defined]
        else:
            self._makers[tensor] = node

    def _remembered(self, tensor: torch.Tensor) -> MadeBy | None:
        if type(tensor) in _NOTED:
            made_by: MadeBy | None = getattr(tensor, "_graphmem_node", NOTHING).value
        else:
            made_by = self._makers.get(tensor)
        return made_by

    def _to_nodes(self, value: Any) -> Any:
        kind = type(value)
        if kind in PLAIN:
            return value
        if isinstance(value, torch.Tensor):
            return self._node_of(value)
        if isinstance(value, (tuple, list)):
            nodes = kind([self._to_nodes(item) for item in value])
            return _shared(nodes) if kind is list else nodes
        if isinstance(value, dict):
            return {key: self._to_nodes(item) for key, item in value.items()}
        if isinstance(value, torch.UntypedStorage):
            return None  # `set_` takes a storage: holding it would keep it alive
        return value

    def _node_of(self, tensor: torch.Tensor) -> Node:
        made_by = self._remembered(tensor)
        if isinstance(made_by, Node):
            return made_by
        node = self._nodes.input() if made_by is None else self._nodes.item(*made_by)
        node.tensor = self._describe(tensor)
        self.remember(tensor, node)
        return node


def _shared(items: list[Any]) -> list[Any]:
    """A list of arguments; equal ones of whole numbers are one, since layers are alike."""
    return _SIZES.setdefault(tuple(items), items) if set(map(type, items)) <= _INT else items
