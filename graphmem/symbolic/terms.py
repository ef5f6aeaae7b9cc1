"""Arrange a formula for readers: group what repeats, and keep the model's constants visible.

Clauses:
  (1) a term is coefficient · symbols · constant. The constant is a size of the model, such as 768
      in 36·B·T·768. The bytes of a storage are (bytes of an element) · (symbols) · (the product of
      its other dimensions). If that product is a size that has a name, it is the constant;
      otherwise the constant is the most frequent one of which it is a small multiple;
  (2) modules that differ only in one number, `h.0` to `h.11`, are one group if their terms are
      equal, and the group is multiplied by their number;
  (3) if a symbol counts modules, it is in the terms of `h.*` instead, before the bracket.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from graphmem.graph import Category
from graphmem.symbolic.polynomial import Polynomial, Powers, monomial_at, total

_NUMBERED = re.compile(r"^(?P<before>(?:[^.]*\.)*?)(?P<number>\d+)(?=\.|$)")

# A feed-forward layer is seldom wider than 16 times the model; a size below 32 says little
# unless it has a name, such as a number of heads.
_MULTIPLE = 16
_SMALLEST = 32

Where = tuple[str, str | None]
"""A module's name up to its first number, and that number, or None."""


@dataclass(frozen=True)
class MatchedStorages:
    """One storage, or several that are matched together.

    Attributes:
        polynomial: its requested bytes; None if they are not a polynomial.
        nbytes: requested bytes at the model's own size.
        itemsize: bytes of one element.
        module: the qualified name, or "".
        what: the name of its owner, or of the operation that made it.
    """

    polynomial: Polynomial | None
    nbytes: int
    itemsize: int
    category: Category
    module: str
    what: str


@dataclass(frozen=True)
class Monomial:
    """One product: `coefficient` · the symbols to their `powers` · `constant`."""

    coefficient: Fraction
    powers: Powers
    constant: int = 1


@dataclass(frozen=True)
class TermGroup:
    """The bytes of one category in one place.

    Attributes:
        modules: how many modules have these terms; the sum of the terms is multiplied by it.
        common: the powers of the symbols before the bracket.
        where: the modules, such as `h.0 … h.11`, or "".
        terms: the terms without `common`, largest first.
        nbytes: the group's bytes at the model's own size.
    """

    category: Category
    where: str
    modules: int
    common: Powers
    terms: tuple[Monomial, ...]
    nbytes: int


@dataclass(frozen=True)
class Constants:
    """The sizes of a model that stay in its formula, by clause (1).

    Attributes:
        named: sizes named by the arguments of `build` or by the user.
        frequent: the other sizes for each product of symbols, most frequent first.
    """

    named: frozenset[int]
    frequent: Mapping[Powers, Sequence[int]]

    @classmethod
    def of(cls, lines: Iterable[MatchedStorages], named: Iterable[int]) -> Constants:
        """Find the constants of the lines of one formula."""
        seen: dict[Powers, Counter[int]] = defaultdict(Counter)
        for line in lines:
            for powers, factor in _factors(line):
                if any(powers) and factor.denominator == 1:
                    seen[powers][int(factor)] += 1
        known = frozenset(named)
        frequent = {
            powers: sorted(
                (each for each in counts if each >= _SMALLEST or each in known),
                key=lambda each: (-counts[each], -each),
            )
            for powers, counts in seen.items()
        }
        return cls(known, frequent)

    def within(self, factor: Fraction, powers: Powers) -> int:
        """The constant of a term whose bytes are `factor` · symbols · (bytes of an element)."""
        if not any(powers) or factor.denominator != 1:
            return 1
        if factor in self.named:
            return int(factor)
        return next(
            (
                each
                for each in self.frequent.get(powers, ())
                if factor % each == 0 and factor / each <= _MULTIPLE
            ),
            1,
        )


def groups(
    lines: Iterable[MatchedStorages],
    sizes: Sequence[int],
    counting: Sequence[bool],
    named: Iterable[int],
) -> list[TermGroup]:
    """Group the lines that have polynomials; in each category the largest group comes first.

    Args:
        lines: the lines of one formula.
        sizes: the own size of each symbol.
        counting: which symbols count modules.
        named: sizes that have a name.
    """
    regular = [line for line in lines if line.polynomial is not None]
    constants = Constants.of(regular, named)
    by_place: dict[tuple[Category, str], dict[str | None, list[MatchedStorages]]] = {}
    for line in regular:
        name, number = _where(line.module)
        by_place.setdefault((line.category, name), {}).setdefault(number, []).append(line)
    found = []
    for (category, name), instances in by_place.items():
        alike: dict[frozenset[Monomial], list[str | None]] = defaultdict(list)
        for number, members in instances.items():
            alike[frozenset(_terms(members, constants))].append(number)
        for terms, numbers in alike.items():
            found.append(_group(category, name, numbers, terms, sizes, counting))
    order = list(Category)
    return sorted(found, key=lambda each: (order.index(each.category), -each.nbytes))


def _group(
    category: Category,
    name: str,
    numbers: Sequence[str | None],
    terms: Iterable[Monomial],
    sizes: Sequence[int],
    counting: Sequence[bool],
) -> TermGroup:
    terms = list(terms)
    common = tuple(
        min(term.powers[axis] for term in terms) if counts and "*" in name and terms else 0
        for axis, counts in enumerate(counting)
    )
    inside = [
        Monomial(
            term.coefficient,
            tuple(power - low for power, low in zip(term.powers, common, strict=True)),
            term.constant,
        )
        for term in terms
    ]
    inside.sort(key=lambda term: (-_value(term, sizes), term.powers))
    each = sum(_value(term, sizes) for term in inside)
    nbytes = len(numbers) * monomial_at(common, sizes) * each
    where = _in_words(name, numbers)
    return TermGroup(category, where, len(numbers), common, tuple(inside), int(nbytes))


def sum_of(lines: Iterable[MatchedStorages]) -> Polynomial:
    """The sum of the lines' polynomials."""
    return total(line.polynomial for line in lines if line.polynomial is not None)


def _value(term: Monomial, sizes: Sequence[int]) -> Fraction:
    return term.coefficient * term.constant * monomial_at(term.powers, sizes)


def _where(module: str) -> Where:
    found = _NUMBERED.match(module)
    if found is not None:
        return found["before"], found["number"]
    return module.partition(".*")[0] + ".*" if ".*" in module else module, None


def _in_words(name: str, numbers: Sequence[str | None]) -> str:
    known = sorted(int(number) for number in numbers if number is not None)
    if not known:
        return name
    if len(known) == 1:
        return f"{name}{known[0]}"
    if len(known) > 2 and known == list(range(known[0], known[-1] + 1)):
        return f"{name}{known[0]} … {name}{known[-1]}"
    return ", ".join(f"{name}{number}" for number in known)


def _terms(lines: Iterable[MatchedStorages], constants: Constants) -> list[Monomial]:
    summed: dict[tuple[Powers, int], Fraction] = {}
    for line in lines:
        for powers, factor in _factors(line):
            constant = constants.within(factor, powers)
            key = powers, constant
            summed[key] = summed.get(key, Fraction(0)) + factor * line.itemsize / constant
    return [Monomial(each, *key) for key, each in summed.items() if each]


def _factors(line: MatchedStorages) -> Iterator[tuple[Powers, Fraction]]:
    """Each product of symbols with its coefficient in elements."""
    assert line.polynomial is not None
    for powers, coefficient in line.polynomial.terms.items():
        yield powers, coefficient / line.itemsize
