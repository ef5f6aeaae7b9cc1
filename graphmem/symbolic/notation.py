"""Notations for formulas: text, LaTeX, Python."""

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
    """Plain text, and the base class of the other notations.

    Attributes:
        letters: the letters of the symbols.
        names: letters for constants, by their value.
        times: the sign between factors.
        thousands: the separator of groups of digits.
    """

    letters: Sequence[str]
    names: Mapping[int, str] = field(default_factory=dict)
    times: str = "·"
    thousands: str = ","

    def power(self, letter: str, exponent: int) -> str:
        """Write a letter to a power."""
        return letter if exponent == 1 else letter + str(exponent).translate(_SUPERSCRIPTS)

    def fraction(self, value: Fraction) -> str:
        """Write a number that is not whole."""
        return str(value)

    def group(self, group: TermGroup) -> str:
        """Write one group, with the factors before its bracket."""
        before = [str(group.modules)] if group.modules > 1 else []
        if len(group.terms) == 1:
            (term,) = group.terms
            powers = tuple(map(sum, zip(term.powers, group.common, strict=True)))
            return self.times.join([*before, self.term(replace(term, powers=powers))])
        before += self._symbols(group.common)
        inside = self.sum(group.terms)
        return self.times.join([*before, f"({inside})"]) if before else inside

    def polynomial(self, polynomial: Polynomial) -> str:
        """Write a polynomial multiplied out, highest powers first."""
        ordered = sorted(polynomial.terms.items(), key=lambda each: (-sum(each[0]), each[0]))
        return self.sum(Monomial(coefficient, powers) for powers, coefficient in ordered)

    def sum(self, terms: Iterable[Monomial]) -> str:
        """Write a sum of terms, in order."""
        written = " + ".join(self.term(term) for term in terms) or "0"
        return written.replace("+ -", "- ")

    def term(self, term: Monomial) -> str:
        """Write one product."""
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
    """LaTeX, for a paper."""

    times: str = r" \cdot "

    def power(self, letter: str, exponent: int) -> str:
        """Write a letter to a power."""
        shown = letter if len(letter) == 1 else rf"\mathit{{{letter}}}".replace("_", r"\_")
        return shown if exponent == 1 else f"{shown}^{{{exponent}}}"

    def fraction(self, value: Fraction) -> str:
        """Write a number that is not whole."""
        return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"

    def _number(self, value: Fraction) -> str:
        return super()._number(value).replace(",", "{,}")


@dataclass(frozen=True)
class Python(Notation):
    """Python, for a program."""

    times: str = " * "
    thousands: str = "_"

    def power(self, letter: str, exponent: int) -> str:
        """Write a letter to a power."""
        return letter if exponent == 1 else f"{letter}**{exponent}"

    def fraction(self, value: Fraction) -> str:
        """Write a number that is not whole."""
        return f"Fraction({value.numerator}, {value.denominator})"
