"""Writes operations as nodes of one `torch.fx.Graph`, in execution order.

Every tensor remembers the node that made it; for parameters the writer does, because programs pass
a parameter's attributes on to its class (accelerate's `init_empty_weights`). One that no operation
made gets a placeholder, and one of several results gets its `getitem` when it is first used; these
nodes describe their tensor in `meta["tensor"]`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.weak import WeakIdKeyDictionary

from graphmem.graph import TensorOut
from graphmem.virtual_device.notes import NOTHING, Note

MadeBy = torch.fx.Node | tuple[torch.fx.Node, int]
"""The node that made a tensor, or the node and the tensor's position among its results."""

_NOTED = frozenset({torch.Tensor, FakeTensor})
_set_args: Any = torch.fx.Node.args.fset  # type: ignore[attr-defined]
_set_kwargs: Any = torch.fx.Node.kwargs.fset  # type: ignore[attr-defined]


class NodeWriter:
    """Appends nodes to a graph.

    Args:
        graph: the graph to extend.
        describe: describes a tensor that is not a direct output of an operation.
    """

    def __init__(
        self, graph: torch.fx.Graph, describe: Callable[[torch.Tensor], TensorOut]
    ) -> None:
        self._graph = graph
        self._describe = describe
        self._names: dict[Any, str] = {}
        self._last_placeholder: torch.fx.Node | None = None
        self._placeholders = 0
        self._makers = WeakIdKeyDictionary()  # of tensors of other classes

    def write(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.fx.Node:
        """Append a call of `func`.

        The arguments are assigned afterwards, because `create_node` would search them for symbolic
        sizes, which a trace does not have; and fx derives a name from a function only once. By
        `node.args = ...`, fx would move the node in its index of operators as well.
        """
        arguments = self._to_nodes(args)
        named = self._to_nodes(kwargs) if kwargs else None
        node = self._graph.create_node("call_function", func, name=self._names.get(func))
        self._names.setdefault(func, node.name)
        _set_args(node, arguments)
        if named is not None:
            _set_kwargs(node, named)
        return node

    def maker_of(self, tensor: torch.Tensor) -> MadeBy:
        """The node that made a tensor; a placeholder if no operation did."""
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
        if isinstance(value, torch.Tensor):
            return self._node_of(value)
        if isinstance(value, (tuple, list)):
            return type(value)([self._to_nodes(item) for item in value])
        if isinstance(value, dict):
            return {key: self._to_nodes(item) for key, item in value.items()}
        if isinstance(value, torch.UntypedStorage):
            return None  # `set_` takes a storage: holding it would keep it alive
        return value

    def _node_of(self, tensor: torch.Tensor) -> torch.fx.Node:
        made_by = self._remembered(tensor)
        if isinstance(made_by, torch.fx.Node):
            return made_by
        node = self._placeholder() if made_by is None else self.item(*made_by)
        node.meta["tensor"] = self._describe(tensor)
        self.remember(tensor, node)
        return node

    def item(self, node: torch.fx.Node, position: int) -> torch.fx.Node:
        """Append a `getitem` for one of several results."""
        return self._graph.call_function(operator.getitem, (node, position))

    def _placeholder(self) -> torch.fx.Node:
        """Insert a placeholder: before all other nodes, in order of first use."""
        graph, last = self._graph, self._last_placeholder
        with graph.inserting_before(None) if last is None else graph.inserting_after(last):
            node = graph.placeholder(f"input_{self._placeholders}")
        self._last_placeholder = node
        self._placeholders += 1
        return node
