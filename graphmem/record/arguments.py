"""Convert arguments of operations to plain values, and back.

None, bools, numbers and strings are written as they are. Everything else is an array that begins
with its kind: `["node", 12]` (a position in the table of nodes), `["list", …]`, `["tuple", …]`,
`["dict", [key, value], …]`, `["slice", start, stop, step]`, `["dtype", "float32"]`,
`["device", "cuda:0"]`, `["layout", "strided"]`, `["memory_format", "channels_last"]`,
`["complex", re, im]`, `["int", "…"]` beyond 64 bits, and `["object", type]` for values that no
reader needs, such as a generator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from graphmem.nodes import Node

_SMALLEST, _BEYOND = -(1 << 63), 1 << 64  # the integers of msgpack
_TORCH_KINDS: Mapping[str, type] = {
    "device": torch.device,
    "dtype": torch.dtype,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}


class UnknownArgument:
    """Stands for an argument of which a record has only the type."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __repr__(self) -> str:
        return f"<{self.kind}>"


def encoded(value: Any, position: Mapping[Node, int]) -> Any:
    """Encode a value for a file.

    Args:
        value: an argument of a node.
        position: each node's position in the table.
    """
    if value is None or isinstance(value, (bool, float, str)):
        return value
    if isinstance(value, int):
        return int(value) if _SMALLEST <= value < _BEYOND else ["int", str(value)]
    if isinstance(value, Node):
        return ["node", position[value]]
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return [kind, *(encoded(item, position) for item in value)]
    if isinstance(value, dict):
        return ["dict", *([str(key), encoded(item, position)] for key, item in value.items())]
    if isinstance(value, slice):
        parts = (value.start, value.stop, value.step)
        return ["slice", *(encoded(item, position) for item in parts)]
    if isinstance(value, complex):
        return ["complex", value.real, value.imag]
    for kind, cls in _TORCH_KINDS.items():
        if isinstance(value, cls):
            return [kind, str(value).removeprefix("torch.")]
    return ["object", f"{type(value).__module__}.{type(value).__qualname__}"]


def decoded(value: Any, nodes: Sequence[Node]) -> Any:
    """Decode a value from a file.

    Args:
        value: as `encoded` wrote it.
        nodes: the nodes read so far.

    Raises:
        ValueError: `encoded` never writes this.
    """
    if not isinstance(value, list):
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise ValueError(f"a {type(value).__name__} among the arguments")
    if not value or not isinstance(value[0], str):
        raise ValueError("an argument without a kind")
    kind, *parts = value
    if kind not in _READERS:
        raise ValueError(f"an argument of the unknown kind {kind!r}")
    try:
        return _READERS[kind](parts, nodes)
    except (TypeError, IndexError, RuntimeError) as error:
        raise ValueError(f"a damaged {kind}: {error}") from None


def _of_torch(kind: str, parts: list[Any], nodes: Sequence[Node]) -> Any:
    (name,) = parts
    if kind == "device":
        return torch.device(name)
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, _TORCH_KINDS[kind]):
        raise ValueError(f"no {kind} {name!r}")
    return found


def _node(parts: list[Any], nodes: Sequence[Node]) -> Node:
    (index,) = parts
    if not isinstance(index, int) or not 0 <= index < len(nodes):
        raise ValueError("an argument that refers to a later node")
    return nodes[index]


def _items(parts: list[Any], nodes: Sequence[Node]) -> list[Any]:
    return [decoded(part, nodes) for part in parts]


_READERS: Mapping[str, Callable[[list[Any], Sequence[Node]], Any]] = {
    "node": _node,
    "list": _items,
    "tuple": lambda parts, nodes: tuple(_items(parts, nodes)),
    "dict": lambda parts, nodes: {str(key): decoded(item, nodes) for key, item in parts},
    "slice": lambda parts, nodes: slice(*_items(parts, nodes)),
    "complex": lambda parts, nodes: complex(*parts),
    **{kind: partial(_of_torch, kind) for kind in _TORCH_KINDS},
    "int": lambda parts, nodes: int(*parts),
    "object": lambda parts, nodes: UnknownArgument(str(*parts)),
}
