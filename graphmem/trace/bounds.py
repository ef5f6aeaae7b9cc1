"""The bounds that a program has set for a number which only a card knows, as by `clamp(min=1)`."""

from __future__ import annotations

from typing import Any

import torch

from graphmem.nodes import Node

aten = torch.ops.aten

_CLAMPS = frozenset({aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default})
_KEEP_NUMBERS = frozenset(
    {aten.select.int, aten.view.default, aten.squeeze.default, aten.squeeze.dim}
    | {aten.unsqueeze.default, aten.slice.Tensor, aten.index.Tensor, aten.expand.default}
    | {aten.detach.default, aten.alias.default, aten.clone.default, aten._to_copy.default}
    | {aten.max.default, aten.min.default, aten.amax.default, aten.amin.default}
)


def within_bounds(number: float, made_by: Any) -> float:
    """The number nearest to one that lies within the bounds that the program has set.

    Args:
        number: what an unknown number would be without bounds.
        made_by: the node that made it.
    """
    node = made_by
    while isinstance(node, Node) and node.operator in _KEEP_NUMBERS:
        node = node.args[0]
    if not isinstance(node, Node) or node.operator not in _CLAMPS:
        return number
    least, most = node.argument("min"), node.argument("max")
    number = number if least is None else max(number, least)
    return number if most is None else min(number, most)
