"""Attention written out as batched products: the tensors of which a rank needs all positions.

Queries are the rows of the first operand, so the second one holds the keys, or the values.

Clauses:
  (1) forward or recomputed, a product of two activations that have positions: its second operand;
  (2) backward, a product that reads one of those: that operand;
  (3) backward, a product that reads scores, which have positions twice, but none of those: its
      result, the gradient of keys or values, before it is summed over the ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from graphmem.parallel.axes.axis import Axis
from graphmem.parallel.axes.rule_interface import Axes

_SCORES = 2


@dataclass(frozen=True)
class Part:
    """A tensor as a fraction of its storage: queries are a third of fused queries, keys and values.

    Attributes:
        storage: the storage's id.
        numel, of: the elements of the tensor, and of the storage.
    """

    storage: int
    numel: int
    of: int


@dataclass(frozen=True)
class BatchedProduct:
    """A batched product of two activations.

    Attributes:
        op: index of the operation.
        is_gradient: whether it computes a gradient.
        operands: the axes of both operands.
        reads: both operands, as parts of their storages.
        makes: the result, as a part of its storage.
    """

    op: int
    is_gradient: bool
    operands: tuple[Axes, Axes]
    reads: tuple[Part, ...]
    makes: tuple[Part, ...]


def find_written_out(
    products: Iterable[BatchedProduct], sequence: Axis
) -> Iterator[tuple[int, tuple[Part, ...]]]:
    """For each operation, the tensors of which it needs all positions.

    Args:
        products: in execution order.
        sequence: the axis of positions.
    """
    keys: set[Part] = set()
    for each in products:
        times = [_count(axes, sequence) for axes in each.operands]
        if not each.is_gradient:
            if all(times):
                keys.update(each.reads[1:])
                yield each.op, each.reads[1:]
        elif keys.intersection(each.reads):
            yield each.op, tuple(part for part in each.reads if part in keys)
        elif _SCORES in times:
            yield each.op, each.makes


def _count(axes: Axes, sequence: Axis) -> int:
    return sum(atom is sequence.root for axis in axes for atom in axis.atoms())
