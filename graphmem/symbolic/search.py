"""Choose sizes, find the polynomials, check them, and look for other moments that may be the peak.

Clauses:
  (1) polynomials are found from sizes next to the model's own (`sizes`, `interpolation`);
  (2) they are checked at a size that was not used. A storage that is wrong there is not a
      polynomial over those sizes: sizes of one alignment are tried, symbol by symbol, over which a
      padded storage is one;
  (3) if that does not help, it is listed as not a polynomial, and the rest is checked at another
      size;
  (4) a peak moves with the sizes. The bytes at every other moment are fitted at the same points,
      and the moments that are the peak somewhere on a grid of sizes (`WIDEST`) are kept. The peak
      is the largest of them.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import product

from graphmem.symbolic.interpolation import Index, Interpolation, interpolate
from graphmem.symbolic.messages import CheckIsSampleError
from graphmem.symbolic.observation import BirthKind, MatchedMoment
from graphmem.symbolic.polynomial import Polynomial
from graphmem.symbolic.sizes import Nodes, NoFitError, Own, Sizes, Traces, choose_nodes, moved

# The grid: own sizes times 2^-6 to 2^6, for each symbol separately; coarser with more symbols.
WIDEST = 6
COARSEST = 3


@dataclass(frozen=True)
class SizeCheck:
    """A size that was not used to find the formula, traced and compared.

    Attributes:
        sizes: the size of each symbol.
        predicted, found: requested bytes of everything assumed to be a polynomial.
        compared: how many storages, or kinds of storages, were compared.
        differing: those whose bytes differ from the prediction.
    """

    sizes: Sizes
    predicted: int
    found: int
    compared: int
    differing: frozenset[Hashable]


@dataclass(frozen=True)
class FoundForm:
    """The result of a search.

    Attributes:
        nodes: the sequence of sizes of each symbol.
        fit: the polynomials: of the storages held, by key, and of all allocations, by kind.
        check: their check.
        others: other moments that are the peak at some sizes, and their bytes.
        left_out: how many moments have bytes that are not polynomials.
    """

    nodes: tuple[Nodes, ...]
    fit: Interpolation[Hashable]
    check: SizeCheck
    others: Mapping[MatchedMoment, Polynomial] = field(default_factory=dict)
    left_out: int = 0

    @property
    def used(self) -> list[Sizes]:
        """The sizes from which the polynomials were found."""
        return [self.point(index) for index in self.fit.coefficients]

    def point(self, index: Index) -> Sizes:
        """The sizes at an index."""
        return _point(self.nodes, index)

    def is_polynomial(self, key: Hashable) -> bool:
        """Whether a key has a polynomial that the check did not refute."""
        return key not in self.fit.irregular and key not in self.check.differing


def search(
    traces: Traces, own: Own, given: Mapping[str, Sequence[int]], wanted: Mapping[str, int] | None
) -> FoundForm:
    """Find the polynomials of everything that is held at the moment asked for.

    Args:
        traces: traces of the target.
        own: the model's own size.
        given: the sizes to trace, by keyword, if the user gave some.
        wanted: the size for the check, if the user gave one.

    Raises:
        InputError: sizes cannot be traced or matched, or a symbol changes nothing.
    """
    found = _attempt(traces, own, given, wanted)
    if found.check.differing and wanted is None:
        found = _without_differing(traces, own, given, found)
    if traces.subject != "peak":
        return found
    known, left_out = _moments(traces, own, found)
    return replace(found, others=_winners(traces, own, found, known), left_out=left_out)


def _attempt(
    traces: Traces,
    own: Own,
    given: Mapping[str, Sequence[int]],
    wanted: Mapping[str, int] | None,
    aligned: Collection[int] = (),
) -> FoundForm:
    nodes, irregular = choose_nodes(traces, own, given, aligned)
    traces.settled = True
    fit = interpolate(
        len(nodes),
        lambda axis, place: nodes[axis].at(place),
        lambda index: traces.followed(_point(nodes, index)),
        irregular,
    )
    used = {_point(nodes, index) for index in fit.coefficients}
    sizes = (
        next(_unused(traces, nodes, used)) if wanted is None else _wanted(traces, own, wanted, used)
    )
    return FoundForm(nodes, fit, _check(traces, fit, sizes))


def _without_differing(
    traces: Traces, own: Own, given: Mapping[str, Sequence[int]], found: FoundForm
) -> FoundForm:
    """Search again for keys that the check refuted, clauses (2) and (3)."""
    aligned: tuple[int, ...] = ()
    for axis in _axes_that_differ(traces, own, found):
        other = _attempt(traces, own, given, None, (*aligned, axis))
        if _bytes_without(traces, own, other) < _bytes_without(traces, own, found):
            found, aligned = other, (*aligned, axis)
    if not found.check.differing:
        return found
    used = {*found.used, found.check.sizes}
    found.fit.irregular |= found.check.differing
    for sizes in _unused(traces, found.nodes, used, is_needed=False):
        return replace(found, check=_check(traces, found.fit, sizes))
    return found


def _bytes_without(traces: Traces, own: Own, found: FoundForm) -> int:
    """Bytes at the model's own size that have no polynomial."""
    values = traces.values(own.sizes)
    return sum(nbytes for key, nbytes in values.items() if not found.is_polynomial(key))


def _axes_that_differ(traces: Traces, own: Own, found: FoundForm) -> list[int]:
    """The symbols along which the differing keys differ when only that one moves, or all."""
    alone = []
    for axis, size in enumerate(found.check.sizes):
        check = _check(traces, found.fit, moved(own.sizes, axis, size))
        if check.differing & found.check.differing:
            alone.append(axis)
    return alone or list(range(len(own.sizes)))


def _winners(
    traces: Traces, own: Own, found: FoundForm, known: Mapping[MatchedMoment, Polynomial]
) -> dict[MatchedMoment, Polynomial]:
    """The moments that are the peak at some sizes."""
    here = found.fit.total(key for key in traces.values(own.sizes) if found.is_polynomial(key))
    front = _not_dominated(known, here, own.sizes)
    winners: dict[MatchedMoment, Polynomial] = {}
    for sizes in (*_grid(own.sizes), *found.used, found.check.sizes):
        best = max(front, key=lambda place: front[place].at(sizes), default=None)
        if best is not None and front[best].at(sizes) > here.at(sizes):
            winners[best] = front[best]
    return winners


def _grid(own: Sizes) -> Iterator[Sizes]:
    powers = range(-WIDEST, WIDEST + 1, min(len(own), COARSEST))
    for chosen in product(powers, repeat=len(own)):
        yield tuple(
            max(1, int(size * Fraction(2) ** power))
            for size, power in zip(own, chosen, strict=True)
        )


def _moments(
    traces: Traces, own: Own, found: FoundForm
) -> tuple[dict[MatchedMoment, Polynomial], int]:
    """The bytes at every moment, and how many moments were left out as not polynomial.

    If the number of modules changes, only their first and last moments are in every trace.
    """
    seen = {sizes: traces.at(sizes) for sizes in (*found.used, found.check.sizes)}
    places = own.observed.places
    if traces.by_kind:
        places = [place for place in places if place.number in (0, -1)]
    places = list(dict.fromkeys([*places, *(each.highest_place for each in seen.values())]))
    totals = {sizes: each.requested_at(places) for sizes, each in seen.items()}
    everywhere = [at for at in places if all(at in each for each in totals.values())]
    fit = found.fit.of_the_same_points(lambda index: totals[found.point(index)])
    at_check = totals[found.check.sizes]
    unpredicted = fit.unpredicted(found.fit.confirmed())
    polynomials = {place: fit.polynomial(place) for place in everywhere if place not in unpredicted}
    known = {
        place: each
        for place, each in polynomials.items()
        if each.at(found.check.sizes) == at_check[place]
    }
    return known, len(places) - len(known)


def _not_dominated(
    moments: Mapping[MatchedMoment, Polynomial], here: Polynomial, sizes: Sizes
) -> dict[MatchedMoment, Polynomial]:
    """The moments that neither `here` nor another moment dominates term by term."""
    front: dict[MatchedMoment, Polynomial] = {}
    for place in sorted(moments, key=lambda place: -moments[place].at(sizes)):
        if not any(each.dominates(moments[place]) for each in (here, *front.values())):
            front[place] = moments[place]
    return front


def _check(traces: Traces, fit: Interpolation[Hashable], sizes: Sizes) -> SizeCheck:
    values = traces.values(sizes)
    storages = {key for key in fit.keys if not isinstance(key, BirthKind)}
    keys = (storages | values.keys()) - fit.irregular
    predicted = {key: fit.polynomial(key).at(sizes) for key in keys}
    return SizeCheck(
        sizes=sizes,
        predicted=int(sum(predicted.values())),
        found=sum(values.get(key, 0) for key in keys),
        compared=len(keys),
        differing=frozenset(key for key in keys if predicted[key] != values.get(key, 0)),
    )


def _point(nodes: Sequence[Nodes], index: Index) -> Sizes:
    return tuple(each.at(place) for each, place in zip(nodes, index, strict=True))


def _wanted(traces: Traces, own: Own, wanted: Mapping[str, int], used: Collection[Sizes]) -> Sizes:
    """The size that the user wants checked; symbols that are not named keep their own size."""
    sizes = tuple(wanted.get(key, size) for key, size in zip(traces.keys, own.sizes, strict=True))
    if sizes in used:
        raise CheckIsSampleError(traces.named(sizes))
    traces.at(sizes)
    return sizes


def _unused(
    traces: Traces, nodes: Sequence[Nodes], used: Collection[Sizes], *, is_needed: bool = True
) -> Iterator[Sizes]:
    """Yield sizes for a check that can be traced; an error if one is needed and there is none."""
    error = NoFitError(
        "every size was used to find the formula", hint="give one for the check: --check KEY=N,…"
    )
    for sizes in zip(*(each.unused() for each in nodes), strict=False):
        if sizes in used:
            continue
        try:
            traces.at(sizes)
        except NoFitError as reason:
            error = reason
            continue
        yield sizes
    if is_needed:
        raise error
