"""The interface of axis rules: what they see of an operation, and the facts they report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from graphmem.parallel.axes.axis import Axis, unify

Axes = tuple[Axis, ...]


class OpView(Protocol):
    """An operation's arguments, as rules see them."""

    @property
    def shapes(self) -> Sequence[tuple[int, ...]]:
        """The shapes of the results."""

    def value(self, name: str) -> Any:
        """A non-tensor argument."""

    def axes(self, name: str) -> Axes | None:
        """The axes of a tensor argument; None if it was not given."""

    def lists(self, name: str) -> list[Axes | None]:
        """The axes of a list of tensors."""

    def tensors(self) -> list[Axes]:
        """The axes of all tensor arguments, in order."""


@dataclass
class AxisFacts:
    """Facts about axes, apart from which are equal.

    Attributes:
        whole: axes over which an operator normalises or reduces in the forward pass.
        batched: leading axes of batched products and of attention: heads, or experts.
        queries: the axes of attention's query positions.
    """

    whole: list[Axis] = field(default_factory=list)
    batched: list[Axis] = field(default_factory=list)
    queries: list[Axis] = field(default_factory=list)


Rule = Callable[[OpView, AxisFacts], list[Axes]]


def new_axes(shape: Sequence[int]) -> Axes:
    """Make an unrelated axis for each dimension."""
    return tuple(map(Axis, shape))


def equate(one: Sequence[Axis], other: Sequence[Axis]) -> None:
    """Record that two tensors have the same axes, from the last one, where sizes allow."""
    for mine, theirs in zip(reversed(one), reversed(other), strict=False):
        if mine.size == theirs.size:
            unify(mine, theirs)


def first(call: OpView) -> Axes:
    """The axes of the first tensor argument."""
    return call.tensors()[0]


def sizes(axes: Axes) -> tuple[int, ...]:
    """The size of each axis."""
    return tuple(axis.size for axis in axes)
