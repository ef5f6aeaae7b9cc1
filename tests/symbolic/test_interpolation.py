"""Polynomials from values: exact, from no more points than needed, and reporting the rest."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from graphmem.symbolic.interpolation import HIGHEST, interpolate
from graphmem.symbolic.polynomial import Polynomial, constant, monomial_at, total

OWN = (12, 1024, 768)


def next_to_own(axis: int, place: int) -> int:
    return OWN[axis] + place


coefficients = st.fractions(min_value=Fraction(1, 8), max_value=100_000, max_denominator=8)
polynomials = st.integers(1, 3).flatmap(
    lambda symbols: st.dictionaries(
        st.tuples(*[st.integers(0, HIGHEST)] * symbols), coefficients, min_size=1, max_size=5
    )
)


@settings(max_examples=40)
@given(polynomials, st.sampled_from([1, -1, 64]))
def test_every_polynomial_is_recovered(terms: dict[tuple[int, ...], Fraction], step: int) -> None:
    symbols = len(next(iter(terms)))

    def node(axis: int, place: int) -> int:
        return OWN[axis] + place * step

    def sample(index: tuple[int, ...]) -> dict[str, int]:
        sizes = [node(axis, place) for axis, place in enumerate(index)]
        # Bytes are integers; the test multiplies by eighths.
        value = sum(each * monomial_at(powers, sizes) for powers, each in terms.items())
        return {"bytes": int(value * 840)}

    fit = interpolate(symbols, node, sample)

    assert fit.irregular == set()
    assert fit.polynomial("bytes").terms == {key: each * 840 for key, each in terms.items()}


def test_points_cover_the_powers_and_one_beyond_each() -> None:
    """B·T² has six coefficients in Newton's form, powers (0 or 1) x (0, 1 or 2); one point each
    rules out B² and T³."""
    sampled = []

    def sample(index: tuple[int, ...]) -> dict[str, int]:
        sampled.append(index)
        batch, seq = next_to_own(0, index[0]), next_to_own(1, index[1])
        return {"scores": 4 * batch * seq**2}

    fit = interpolate(2, next_to_own, sample)

    assert len(sampled) == len(set(sampled)) == 6 + 2
    assert sorted(fit.confirmed()) == [(0, 3), (2, 0)]


def test_a_key_absent_at_a_point_is_zero_there() -> None:
    def sample(index: tuple[int, ...]) -> dict[str, int]:
        return {"always": 1 + index[0], **({"later": 5} if index != (0,) else {})}

    fit = interpolate(1, lambda _, place: place, sample)

    assert fit.irregular == {"later"}, "5 everywhere but at 0 is not a polynomial of a low power"


def test_padding_is_not_a_polynomial_and_hides_none() -> None:
    """Rows padded to a multiple of 32, from 1024 on: 1024, 1056, 1056, …"""

    def sample(index: tuple[int, ...]) -> dict[str, int]:
        seq = 1024 + index[0]
        return {"padded": -(-seq // 32) * 32, "plain": 2 * seq}

    fit = interpolate(1, lambda _, place: 1024 + place, sample)

    assert fit.irregular == {"padded"}
    assert fit.polynomial("plain") == Polynomial({(1,): Fraction(2)})


def test_known_irregular_keys_need_no_points() -> None:
    sampled = []

    def sample(index: tuple[int, ...]) -> dict[str, int]:
        sampled.append(index)
        return {"padded": -(-(1024 + index[0]) // 32), "constant": 7}

    interpolate(1, lambda _, place: 1024 + place, sample, irregular={"padded"})

    assert sampled == [(0,), (1,)]


def test_arithmetic_of_polynomials() -> None:
    """(x - 2)(x - 3) + 4·y = x² - 5·x + 6 + 4·y, which is 6 - 15 + 9 + 6 + 4·5 at x = 3, y = 5."""
    product = constant(1, 2).shifted(0, 2).shifted(0, 3)
    found = total([product, constant(4, 2).shifted(1, 0)])

    assert found.terms == {(2, 0): 1, (1, 0): -5, (0, 0): 6, (0, 1): 4}
    assert found.at((3, 5)) == 0 + 4 * 5
    assert (found + found * -1).terms == {}
