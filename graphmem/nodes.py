"""The nodes of the step graph: inputs, operations (`graph.Op`), and one of several results.

They read like those of a `torch.fx.Graph`, into which `fx_graph` turns them. One of `torch.fx`
takes 1,130 bytes, most of them for dictionaries of its inputs, its users and its notes, and a long
program has millions. A node here keeps what cannot be derived.
"""

from __future__ import annotations

import keyword
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import torch.fx

    from graphmem.graph import Op, TensorOut

NO_KEYWORDS: Mapping[str, Any] = MappingProxyType({})


class Node(msgspec.Struct, gc=False, eq=False):
    """Something that an operation can take, in place of a tensor.

    Attributes:
        args: the arguments, with nodes in place of tensors.
    """

    args: tuple[Any, ...]

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """The arguments that were given by name."""
        return NO_KEYWORDS

    @property
    def operator(self) -> Any:
        """What was called; None for an input."""
        return None

    @property
    def tensor(self) -> TensorOut | None:
        """What it stands for; None if that is not known, or no tensor."""
        return None

    @property
    def all_input_nodes(self) -> list[Node]:
        """The nodes among the arguments, each once, in order."""
        return list(dict.fromkeys(_nodes_in((*self.args, *self.kwargs.values()))))

    def argument(self, name: str) -> Any:
        """An argument by its name in the operator's schema, or its default; None without one."""
        if name in self.kwargs:
            return self.kwargs[name]
        position, default = _parameters(self.operator).get(name, (len(self.args), None))
        return self.args[position] if position < len(self.args) else default

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"  # without its arguments, and theirs


class Input(Node, gc=False, eq=False):
    """A tensor that no operation made."""

    tensor: TensorOut | None = None


class Item(Node, gc=False, eq=False):
    """One of several results: `args` are the node that has them, and a position."""

    tensor: TensorOut | None = None

    @property
    def operator(self) -> Any:
        """What takes one of several."""
        return operator.getitem


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
        self._others: list[Node] = []

    def __iter__(self) -> Iterator[Node]:
        return chain(self._inputs, self._others)

    def __len__(self) -> int:
        return len(self._inputs) + len(self._others)

    def input(self) -> Input:
        """Append an input."""
        node = Input(())
        self._inputs.append(node)
        return node

    def item(self, several: Node, position: int) -> Item:
        """Append one of a node's results."""
        node = Item((several, position))
        self._others.append(node)
        return node

    def append(self, op: Op) -> None:
        """Append an operation."""
        self._others.append(op)

    def names(self) -> dict[Node, str]:
        """The nodes, each with its name, which is unique, as `torch.fx` names them.

        The third call of `aten.addmm` is `addmm_default_2`.
        """
        found: dict[Node, str] = {each: f"input_{i}" for i, each in enumerate(self._inputs)}
        numbers: dict[str, int] = {}
        for node in self._others:
            name = _identifier(node.operator)
            number = numbers[name] = numbers.get(name, -1) + 1
            found[node] = f"{name}_{number}" if number else name
        return found

    def users(self) -> Users:
        """The nodes that take each node as an argument, in order, where there are any."""
        found: dict[Node, list[Node]] = {}
        for node in self._others:
            for each in node.all_input_nodes:
                found.setdefault(each, []).append(node)
        return found


@cache
def _identifier(function: Any) -> str:
    """An operator's name as that of a variable (`_Namespace`, torch/fx/graph.py).

    No operator of PyTorch has one that ends in a number, which `_Namespace` would count on from.
    """
    words = re.sub(r"(?<=[a-z])([A-Z])", r"_\1", function.__name__).lower()
    words = re.sub(r"[^0-9a-z_]+", "_", words) or "_unnamed"
    return f"_{words}" if words[0].isdigit() or keyword.iskeyword(words) else words


def fx_graph(nodes: NodeList) -> torch.fx.Graph:
    """The nodes as a `torch.fx.Graph`, for its tools.

    `meta` has an operation as `op`, and what any other node is, if that is known, as `tensor`.
    """
    import torch.fx
    from torch.fx.node import map_aggregate

    graph = torch.fx.Graph()
    made: dict[Node, Any] = {}

    def of_fx(value: Any) -> Any:
        return made[value] if isinstance(value, Node) else value

    for node, name in nodes.names().items():
        kind = "placeholder" if isinstance(node, Input) else "call_function"
        args, kwargs = map_aggregate((node.args, dict(node.kwargs)), of_fx)
        made[node] = graph.create_node(kind, node.operator or name, args, kwargs, name=name)
        if not isinstance(node, (Input, Item)):
            made[node].meta["op"] = node
        elif node.tensor is not None:
            made[node].meta["tensor"] = node.tensor
    return graph


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
