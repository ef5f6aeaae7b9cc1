"""An operation of the trace, as the axis rules see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graphmem.graph import Op, TensorOut
from graphmem.nodes import Node
from graphmem.parallel.axes.rule_interface import Axes


@dataclass(frozen=True)
class RecordedOp:
    """An operation's arguments, as `axis_rules` sees them."""

    op: Op
    axes_of: Any

    @property
    def shapes(self) -> Sequence[tuple[int, ...]]:
        """The shapes of the results."""
        return [output.shape for output in self.op.outputs]

    def value(self, name: str) -> Any:
        """An argument of the node, or its default."""
        return self.op.argument(name)

    def axes(self, name: str) -> Axes | None:
        """The axes of a tensor argument; None if it was not given."""
        value = self.value(name)
        return self.axes_of(value) if isinstance(value, Node) else None

    def lists(self, name: str) -> list[Axes | None]:
        """The axes of a list of tensors."""
        value = self.value(name) or ()
        return [self.axes_of(item) if isinstance(item, Node) else None for item in value]

    def tensors(self) -> list[Axes]:
        """The axes of all tensor arguments, in order."""
        return [self.axes_of(node) for node in self.op.all_input_nodes]


def is_row_major(tensor: TensorOut) -> bool:
    """Whether a tensor is row-major and starts at the beginning of its storage."""
    expected = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return not tensor.offset
