"""The nodes of the step graph: calls of operators with their arguments, and what these refer to.

They read like those of a `torch.fx.Graph`, into which `fx_graph` turns them. One of `torch.fx`
takes 1,130 bytes, most of them for dictionaries of its inputs, its users and its notes, and a long
program has millions. A node here keeps what cannot be derived.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch.fx

    from graphmem.graph import Op, TensorOut

_NO_ARGUMENTS: Mapping[str, Any] = MappingProxyType({})


class Node:
    """A call of an operator, an input that no operation made, or one of several results.

    Attributes:
        target: the operator; `operator.getitem` for one of several results; an input's name.
        args: the arguments, with nodes in place of tensors.
        kwargs: those that were given by name.
        call: the operation; None for an input and for one of several results.
        tensor: what an input or one of several results is, if that is known.
    """

    __slots__ = ("_base", "_number", "args", "call", "kwargs", "target", "tensor")

    def __init__(
        self, base: str, number: int, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self._base = base
        self._number = number
        self.target = target
        self.args = args
        self.kwargs = kwargs
        self.call: Op | None = None
        self.tensor: TensorOut | None = None

    @property
    def name(self) -> str:
        """The name, unique in the graph: `addmm_default_2` for the operator's third call."""
        return f"{self._base}_{self._number}" if self._number else self._base

    @property
    def op(self) -> str:
        """What kind of node it is, in the words of `torch.fx`."""
        return "placeholder" if isinstance(self.target, str) else "call_function"

    @property
    def meta(self) -> dict[str, Any]:
        """`call` as `op`, and `tensor`, if there are any."""
        notes = {"op": self.call, "tensor": self.tensor}
        return {name: value for name, value in notes.items() if value is not None}

    @property
    def all_input_nodes(self) -> list[Node]:
        """The nodes among the arguments, each once, in order."""
        return list(dict.fromkeys(_nodes_in((*self.args, *self.kwargs.values()))))

    def __repr__(self) -> str:
        return self.name


def _nodes_in(values: Iterable[Any]) -> Iterator[Node]:
    for value in values:
        if isinstance(value, Node):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _nodes_in(value)
        elif isinstance(value, Mapping):
            yield from _nodes_in(value.values())


Users = Mapping[Node, Sequence[Node]]


class NodeList:
    """The nodes of a graph in execution order, which begins with its inputs."""

    def __init__(self) -> None:
        self._inputs: list[Node] = []
        self._calls: list[Node] = []
        self._bases: dict[Any, str] = {}
        self._numbers: dict[str, int] = {}

    def __iter__(self) -> Iterator[Node]:
        return chain(self._inputs, self._calls)

    def __len__(self) -> int:
        return len(self._inputs) + len(self._calls)

    def input(self, name: str | None = None) -> Node:
        """Append an input; without a name it is numbered."""
        name = name or f"input_{len(self._inputs)}"
        node = Node(name, 0, name, (), _NO_ARGUMENTS)
        self._inputs.append(node)
        return node

    def write(
        self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] = _NO_ARGUMENTS
    ) -> Node:
        """Append a call, named after its target as `torch.fx` does."""
        base = self._bases.get(target)
        if base is None:
            base = self._bases[target] = _identifier(target.__name__)
        number = self._numbers.get(base, -1) + 1
        self._numbers[base] = number
        return self._append(Node(base, number, target, args, kwargs))

    def write_named(self, name: str, target: Any) -> Node:
        """Append a call whose name is known and whose arguments follow."""
        return self._append(Node(name, 0, target, (), _NO_ARGUMENTS))

    def _append(self, node: Node) -> Node:
        self._calls.append(node)
        return node

    def users(self) -> Users:
        """The nodes that take each node as an argument, in order, where there are any."""
        found: dict[Node, list[Node]] = {}
        for node in self._calls:
            for each in node.all_input_nodes:
                found.setdefault(each, []).append(node)
        return found


def _identifier(name: str) -> str:
    """An operator's name as that of a variable (`_Namespace`, torch/fx/graph.py).

    No operator of PyTorch has one that ends in a number, which `_Namespace` would count on from.
    """
    words = re.sub(r"(?<=[a-z])([A-Z])", r"_\1", name).lower()
    words = re.sub(r"[^0-9a-z_]+", "_", words) or "_unnamed"
    return f"_{words}" if words[0].isdigit() or keyword.iskeyword(words) else words


def fx_graph(nodes: NodeList) -> torch.fx.Graph:
    """The nodes as a `torch.fx.Graph`, for its tools."""
    import torch.fx
    from torch.fx.node import map_aggregate

    graph = torch.fx.Graph()
    made: dict[Node, Any] = {}

    def of_fx(value: Any) -> Any:
        return made[value] if isinstance(value, Node) else value

    for node in nodes:
        args, kwargs = map_aggregate((node.args, dict(node.kwargs)), of_fx)
        made[node] = graph.create_node(node.op, node.target, args, kwargs, name=node.name)
        made[node].meta.update(node.meta)
    return graph


def tensor_of(node: Node) -> TensorOut | None:
    """The tensor that a node stands for; for an operation, its first result."""
    if node.call is not None:
        return node.call.outputs[0] if node.call.outputs else None
    return node.tensor


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
