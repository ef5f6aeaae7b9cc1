"""Find polynomials in several symbols exactly, from their values at a few sizes.

Newton's form: symbol i is given the sizes n(i, 0), n(i, 1), …; an index (k, l, …) stands for the
point (n(0, k), n(1, l), …). The coefficient of the basis polynomial of an index is

    (value at its point - value there of everything found below) / basis polynomial there

which is exact in rational numbers. How many points are needed is not known in advance, so they are
chosen on the way:
  (1) an index is sampled once all indices one step below it were, if some polynomial had a nonzero
      coefficient at all of those;
  (2) so the search ends with points at which nothing new is found: sizes that were predicted;
  (3) a value that still changes at the power `HIGHEST + 1` of one symbol is not a polynomial: it is
      irregular and not followed any further.

Not covered: polynomials with a power above `HIGHEST` in one symbol. Attention over the pixels of an
image has the 4th power of its edge.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import prod
from typing import Generic, TypeVar

from graphmem.symbolic.polynomial import Polynomial, constant, total

HIGHEST = 4

Index = tuple[int, ...]
Key = TypeVar("Key", bound=Hashable)
Other = TypeVar("Other", bound=Hashable)


@dataclass
class Interpolation(Generic[Key]):
    """The polynomials found, by key.

    Attributes:
        nodes: the size of a symbol, by its position and the place in its sequence of sizes.
        coefficients: those of the basis polynomial of each sampled index; zeros are left out.
        irregular: the keys that are not polynomials.
    """

    nodes: Callable[[int, int], int]
    coefficients: dict[Index, dict[Key, Fraction]] = field(default_factory=dict)
    irregular: set[Key] = field(default_factory=set)

    def polynomial(self, key: Key) -> Polynomial:
        """One polynomial as a sum of monomials."""
        return total(
            self._basis(index) * found[key]
            for index, found in self.coefficients.items()
            if key in found
        )

    @property
    def keys(self) -> set[Key]:
        """All keys that were seen."""
        return {key for found in self.coefficients.values() for key in found}

    def total(self, keys: Iterable[Key]) -> Polynomial:
        """The sum of some polynomials."""
        return total(self.polynomial(key) for key in keys)

    def of_the_same_points(
        self, sample: Callable[[Index], Mapping[Other, int]]
    ) -> Interpolation[Other]:
        """Fit other values at the points that were sampled for this."""
        fit = Interpolation[Other](self.nodes)
        for index in self.coefficients:
            fit._add(index, sample(index))
        return fit

    def unpredicted(self, indices: Iterable[Index]) -> set[Key]:
        """The keys whose values at these points differ from the other points' prediction."""
        return {key for index in indices for key in self.coefficients[index]}

    def confirmed(self) -> list[Index]:
        """The points at which every value was as the other points predicted."""
        return [
            index for index, found in self.coefficients.items() if not found.keys() - self.irregular
        ]

    def _add(self, index: Index, values: Mapping[Key, int]) -> None:
        point = [self.nodes(axis, place) for axis, place in enumerate(index)]
        below = {
            each: self._basis_at(each, point)
            for each in self.coefficients
            if all(low <= high for low, high in zip(each, index, strict=True))
        }
        basis = self._basis_at(index, point)
        known = {key for each in below for key in self.coefficients[each]}
        found = {}
        for key in values.keys() | known:
            predicted = sum(self.coefficients[each].get(key, 0) * at for each, at in below.items())
            found[key] = (values.get(key, 0) - Fraction(predicted)) / basis
        self.coefficients[index] = {key: each for key, each in found.items() if each}
        if max(index) > HIGHEST:
            self.irregular |= self.coefficients[index].keys()

    def _basis_at(self, index: Index, point: list[int]) -> int:
        return prod(
            point[axis] - self.nodes(axis, place)
            for axis, power in enumerate(index)
            for place in range(power)
        )

    def _basis(self, index: Index) -> Polynomial:
        basis = constant(1, len(index))
        for axis, power in enumerate(index):
            for place in range(power):
                basis = basis.shifted(axis, self.nodes(axis, place))
        return basis

    def _next_to(self, index: Index) -> Iterator[Index]:
        """The indices one step above that clause (1) requires."""
        for axis in range(len(index)):
            above = _stepped(index, axis, 1)
            lower = [_stepped(above, each, -1) for each, power in enumerate(above) if power]
            if above[axis] > HIGHEST + 1 or not all(each in self.coefficients for each in lower):
                continue
            followed = set.intersection(*(set(self.coefficients[each]) for each in lower))
            if followed - self.irregular:
                yield above


def interpolate(
    symbols: int,
    nodes: Callable[[int, int], int],
    sample: Callable[[Index], Mapping[Key, int]],
    irregular: Collection[Key] = (),
) -> Interpolation[Key]:
    """Sample values until every polynomial is known.

    Args:
        symbols: the number of symbols.
        nodes: the size of a symbol, by its position and the place in its sequence; all different.
        sample: the values at an index; a missing one is 0.
        irregular: the keys known not to be polynomials.
    """
    fit = Interpolation[Key](nodes, irregular=set(irregular))
    waiting = [(0,) * symbols]
    while waiting:
        index = min(waiting, key=lambda each: (sum(each), each))
        waiting.remove(index)
        fit._add(index, sample(index))
        waiting += [
            each
            for each in fit._next_to(index)
            if each not in fit.coefficients and each not in waiting
        ]
    return fit


def _stepped(index: Index, axis: int, by: int) -> Index:
    return (*index[:axis], index[axis] + by, *index[axis + 1 :])
