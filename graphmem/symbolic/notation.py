"""How a formula is written: as text, in LaTeX, or in Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from graphmem.symbolic.polynomial import Polynomial, Powers
from graphmem.symbolic.terms import Monomial, TermGroup

_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_MANY = 10_000


@dataclass(frozen=True)
class Notation:
    """One way of writing; `written` and its like are the same for all.

    Attributes:
        letters: of the symbols.
        names: letters for constants, by their value.
        times: between factors.
        thousands: whether numbers that stand alone are grouped.
    """

    letters: Sequence[str]
    names: Mapping[int, str] = field(default_factory=dict)
    times: str = "·"
    thousands: str = ","

    def power(self, letter: str, exponent: int) -> str:
        """A letter to its power."""
        return letter if exponent == 1 else letter + str(exponent).translate(_SUPERSCRIPTS)

    def fraction(self, value: Fraction) -> str:
        """A number that is not whole."""
        return str(value)

    def group(self, group: TermGroup) -> str:
        """One group, with what stands before its bracket."""
        before = [str(group.modules)] if group.modules > 1 else []
        if len(group.terms) == 1:
            (term,) = group.terms
            powers = tuple(map(sum, zip(term.powers, group.common, strict=True)))
            return self.times.join([*before, self.term(replace(term, powers=powers))])
        before += self._symbols(group.common)
        inside = self.sum(group.terms)
        return self.times.join([*before, f"({inside})"]) if before else inside

    def polynomial(self, polynomial: Polynomial) -> str:
        """All of it, multiplied out, highest powers first."""
        ordered = sorted(polynomial.terms.items(), key=lambda each: (-sum(each[0]), each[0]))
        return self.sum(Monomial(coefficient, powers) for powers, coefficient in ordered)

    def sum(self, terms: Iterable[Monomial]) -> str:
        """Terms in their order."""
        written = " + ".join(self.term(term) for term in terms) or "0"
        return written.replace("+ -", "- ")

    def term(self, term: Monomial) -> str:
        """One product."""
        factors = self._symbols(term.powers)
        if term.constant != 1:
            factors.append(self.names.get(term.constant, str(term.constant)))
        if not factors:
            return self._number(term.coefficient)
        if term.coefficient == 1:
            return self.times.join(factors)
        return self.times.join([self._number(term.coefficient), *factors])

    def _number(self, value: Fraction) -> str:
        if value.denominator != 1:
            return self.fraction(value)
        number = int(value)
        return f"{number:{self.thousands}}" if abs(number) >= _MANY else str(number)

    def _symbols(self, powers: Powers) -> list[str]:
        pairs = zip(self.letters, powers, strict=True)
        return [self.power(letter, exponent) for letter, exponent in pairs if exponent]


@dataclass(frozen=True)
class Latex(Notation):
    """For a paper."""

    times: str = r" \cdot "

    def power(self, letter: str, exponent: int) -> str:
        """A letter to its power."""
        shown = letter if len(letter) == 1 else rf"\mathit{{{letter}}}".replace("_", r"\_")
        return shown if exponent == 1 else f"{shown}^{{{exponent}}}"

    def fraction(self, value: Fraction) -> str:
        """A number that is not whole."""
        return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"

    def _number(self, value: Fraction) -> str:
        return super()._number(value).replace(",", "{,}")


@dataclass(frozen=True)
class Python(Notation):
    """For a program."""

    times: str = " * "
    thousands: str = "_"

    def power(self, letter: str, exponent: int) -> str:
        """A letter to its power."""
        return letter if exponent == 1 else f"{letter}**{exponent}"

    def fraction(self, value: Fraction) -> str:
        """A number that is not whole."""
        return f"Fraction({value.numerator}, {value.denominator})"
