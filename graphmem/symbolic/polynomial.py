"""Polynomials in several symbols with exact rational coefficients.

Not sympy: it would multiply out 36·768, and a reader looks for the constants of a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import prod

Powers = tuple[int, ...]
"""The exponent of each symbol."""


@dataclass(frozen=True)
class Polynomial:
    """A sum of monomials.

    Attributes:
        terms: the coefficient of each monomial, none of them 0.
    """

    terms: Mapping[Powers, Fraction] = field(default_factory=dict)

    def __add__(self, other: Polynomial) -> Polynomial:
        return total((self, other))

    def __mul__(self, factor: Fraction | int) -> Polynomial:
        return _without_zeros({powers: each * factor for powers, each in self.terms.items()})

    def shifted(self, axis: int, node: int) -> Polynomial:
        """This polynomial times (symbol - node), for the symbol at position `axis`."""
        raised = {
            (*powers[:axis], powers[axis] + 1, *powers[axis + 1 :]): coefficient
            for powers, coefficient in self.terms.items()
        }
        return Polynomial(raised) + self * -node

    def dominates(self, other: Polynomial) -> bool:
        """Whether no coefficient is smaller than the other's, and so no value at any sizes."""
        keys = self.terms.keys() | other.terms.keys()
        return all(self.terms.get(key, 0) >= other.terms.get(key, 0) for key in keys)

    def at(self, sizes: Sequence[int]) -> Fraction:
        """Its value at `sizes`."""
        return sum(
            (each * monomial_at(powers, sizes) for powers, each in self.terms.items()), Fraction(0)
        )


def monomial_at(powers: Powers, sizes: Sequence[int]) -> int:
    """The product of `sizes`, each to its power."""
    return prod(size**power for size, power in zip(sizes, powers, strict=True))


def total(polynomials: Iterable[Polynomial]) -> Polynomial:
    """The sum of polynomials in the same symbols."""
    terms: dict[Powers, Fraction] = {}
    for each in polynomials:
        for powers, coefficient in each.terms.items():
            terms[powers] = terms.get(powers, Fraction(0)) + coefficient
    return _without_zeros(terms)


def constant(value: Fraction | int, symbols: int) -> Polynomial:
    """A constant polynomial."""
    return _without_zeros({(0,) * symbols: Fraction(value)})


def _without_zeros(terms: Mapping[Powers, Fraction]) -> Polynomial:
    return Polynomial({powers: each for powers, each in terms.items() if each})
