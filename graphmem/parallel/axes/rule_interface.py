"""What rules of operators see of an operation, and what they report beyond its results' axes."""

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
        """An argument that is no tensor."""

    def axes(self, name: str) -> Axes | None:
        """The axes of a tensor argument, None where there is none."""

    def lists(self, name: str) -> list[Axes | None]:
        """The axes of a list of tensors."""

    def tensors(self) -> list[Axes]:
        """The axes of all tensor arguments, in order."""


@dataclass
class AxisFacts:
    """Facts about axes other than which are equal.

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
    """New axes."""
    return tuple(map(Axis, shape))


def equate(one: Sequence[Axis], other: Sequence[Axis]) -> None:
    """Learn that two tensors have the same axes, as far as sizes allow, from the last one on."""
    for mine, theirs in zip(reversed(one), reversed(other), strict=False):
        if mine.size == theirs.size:
            unify(mine, theirs)


def first(call: OpView) -> Axes:
    """The axes of the first tensor argument."""
    return call.tensors()[0]


def sizes(axes: Axes) -> tuple[int, ...]:
    """Of each axis."""
    return tuple(axis.size for axis in axes)
