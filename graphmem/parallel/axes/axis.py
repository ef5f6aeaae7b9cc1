"""Axes: the dimensions of a step's tensors, and which of them are the same.

A dimension of a tensor is an axis. Operators tell which axes are equal (a residual addition: those
of both operands), which one is a product of others (`view`: 768 channels are 12 heads of 64) and
which one is a concatenation (`cat`). These facts are kept in a union-find, so that an axis that
runs through the whole model is a single axis, and two unrelated axes of equal size stay separate.
Nothing is inferred from sizes alone.

An axis without factors is an *atom*. A layout divides atoms; every size follows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence


class Axis:
    """One axis; equal axes share a `root`.

    Attributes:
        size: its size in the trace.
        factors: the axes it is the product of, outermost first; empty for an atom.
        parts: the axes it is the concatenation of; empty for most.
        cut_from: the axis that it is a slice of, or None.
        drawn_from: the axis from which the data pick a proportional number of items, or None.
        counts_parts: whether it only counts equal parts, like the 3 of fused queries, keys and
            values.
    """

    __slots__ = ("_parent", "counts_parts", "cut_from", "drawn_from", "factors", "parts", "size")

    def __init__(
        self,
        size: int,
        factors: Sequence[Axis] = (),
        parts: Sequence[Axis] = (),
        cut_from: Axis | None = None,
        *,
        drawn_from: Axis | None = None,
        counts_parts: bool = False,
    ) -> None:
        self.size = size
        self.factors = tuple(factors)
        self.parts = tuple(parts)
        self.cut_from = cut_from
        self.drawn_from = drawn_from
        self.counts_parts = counts_parts
        self._parent: Axis | None = None

    @property
    def root(self) -> Axis:
        """The representative of all axes that are equal to this one."""
        root = self
        while root._parent is not None:
            root = root._parent
        axis = self
        while axis._parent is not None:
            axis._parent, axis = root, axis._parent
        return root

    def atoms(self) -> list[Axis]:
        """The atoms it is the product of, outermost first; none for a size of 1."""
        root = self.root
        if root.size == 1:
            return []
        if not root.factors:
            return [root]
        return [atom for factor in root.factors for atom in factor.atoms()]

    def local_size(self, divided: Mapping[Axis, int]) -> int:
        """Its size when some atoms have different sizes.

        Args:
            divided: the new sizes of those atoms.
        """
        root = self.root
        if root in divided:
            return divided[root]
        if root.factors:
            size = 1
            for factor in root.factors:
                size *= factor.local_size(divided)
            return size
        if root.parts:
            return sum(part.local_size(divided) for part in root.parts)
        whole = root.cut_from or root.drawn_from
        if whole is not None:
            return -(-root.size * whole.local_size(divided) // whole.size)
        return root.size

    def reaches(self, wanted: set[Axis]) -> bool:
        """Whether its size depends on any of these atoms."""
        root = self.root
        if root in wanted:
            return True
        below = (*root.factors, *root.parts, root.cut_from, root.drawn_from)
        return any(axis.reaches(wanted) for axis in below if axis is not None)


def unify(one: Axis, other: Axis) -> bool:
    """Record that two axes are the same; return False if that is impossible."""
    one, other = one.root, other.root
    if one is other:
        return True
    if one.size != other.size:
        return False
    if one.size == 1:
        return True
    if one.factors and other.factors:
        return _refine_both(one, other)
    if _knows_more(one, other):
        one, other = other, one
    if other.reaches({one}):
        return False
    one._parent = other
    other.counts_parts = other.counts_parts or one.counts_parts
    if one.drawn_from is not None and not one.drawn_from.reaches({other}):
        other.drawn_from = other.drawn_from or one.drawn_from
    return True


def _knows_more(one: Axis, other: Axis) -> bool:
    """Whether `one` is the better root: factors are the most informative, a slice the least."""

    def rank(axis: Axis) -> int:
        return 3 if axis.factors else 2 if axis.parts else 0 if axis.cut_from else 1

    return rank(one) > rank(other)


def _refine_both(one: Axis, other: Axis) -> bool:
    """Cut two products of the same size until their factors have the same sizes."""
    made = regroup([other], [factor.size for factor in one.factors])
    if made is None:
        return False
    for mine, theirs in zip(one.factors, made, strict=True):
        unify(mine, theirs)
    one._parent = other
    return True


def regroup(axes: Sequence[Axis], sizes: Sequence[int]) -> list[Axis] | None:
    """Regroup axes as `view` does: an axis for each size, of the same atoms in the same order.

    Atoms are cut where a size requires it. None if atoms and sizes do not match.
    """
    atoms = deque(atom for axis in axes for atom in axis.atoms())
    found = []
    for size in sizes:
        factors: list[Axis] = []
        left = size
        while left > 1:
            if not atoms:
                return None
            atom = atoms.popleft()
            if left % atom.size == 0:
                factors.append(atom)
                left //= atom.size
            elif atom.size % left == 0:
                outer, inner = cut(atom, left)
                factors.append(outer)
                atoms.appendleft(inner)
                left = 1
            else:
                return None
        found.append(factors[0] if len(factors) == 1 else Axis(size, factors))
    return found


def cut(atom: Axis, outer_size: int) -> tuple[Axis, Axis]:
    """Make an atom the product of two axes."""
    outer, inner = Axis(outer_size), Axis(atom.size // outer_size)
    atom.factors = (outer, inner)
    atom.parts, atom.cut_from = (), None
    return outer, inner


def cut_into_parts(axis: Axis, count: int) -> Axis:
    """Record that an axis is a concatenation of `count` equal parts; return a part's axis."""
    counter = Axis(count, counts_parts=True)
    part = Axis(axis.size // count)
    if count == 1:
        return axis
    if not unify(Axis(axis.size, (counter, part)), axis):
        return Axis(axis.size // count, cut_from=axis)
    return part
