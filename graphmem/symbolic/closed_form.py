"""The requested bytes of a user's own model as an exact polynomial in its dimensions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from keyword import iskeyword
from typing import Any

from graphmem.analysis import Progress, Request
from graphmem.errors import did_you_mean
from graphmem.symbolic.messages import (
    NoSymbolError,
    NotPolynomialError,
    SameLetterError,
    UnknownSymbolError,
    WrongLetterError,
    WrongSymbolsError,
)
from graphmem.symbolic.observation import HeldStorage, Subject, folded
from graphmem.symbolic.polynomial import Polynomial
from graphmem.symbolic.search import FoundForm, SizeCheck, search
from graphmem.symbolic.sizes import Nodes, Own, Sizes, Traces, moved
from graphmem.symbolic.terms import MatchedStorages, TermGroup, groups, sum_of

# Whole-number arguments of `build` below this are usually counts, not sizes.
SMALLEST_NAMED = 8


@dataclass(frozen=True)
class ClosedForm:
    """The formula and its evidence; all bytes are requested bytes.

    Attributes:
        target: as the user named it.
        subject: which bytes the formula describes.
        moment: when, in words.
        symbols: the letter of each keyword of `build`.
        sizes: the model's own size of each symbol.
        lines: every storage that is alive at the moment.
        counting: which symbols count modules.
        requested: bytes at the model's own size, as in `graphmem analyze`.
        allocated: the same with rounding and gaps; None if there is no such figure.
        traced: the sizes from which the formula was found.
        confirmed: those of them at which every storage was as the others predicted.
        check: the check at a size that was not used.
        nodes: the sequence of sizes of each symbol.
        others: moments that are the peak at other sizes, in words, each with its total bytes.
        left_out: how many moments are not in `others` because their bytes are not polynomials.
        elsewhere: the traced sizes at which the peak is above all of these, and by how many bytes.
        constants: the arguments of `build` that have each whole number as value.
        names: the user's letters for constants.
    """

    target: str
    subject: Subject
    moment: str
    symbols: Mapping[str, str]
    sizes: Sizes
    lines: tuple[MatchedStorages, ...]
    counting: tuple[bool, ...]
    requested: int
    allocated: int | None
    traced: tuple[Sizes, ...]
    confirmed: tuple[Sizes, ...]
    check: SizeCheck
    nodes: tuple[Nodes, ...]
    others: tuple[tuple[str, Polynomial], ...]
    left_out: int
    elsewhere: Mapping[Sizes, int]
    constants: Mapping[int, tuple[str, ...]]
    names: Mapping[int, str]

    @cached_property
    def polynomial(self) -> Polynomial:
        """The sum of all parts that are polynomials."""
        return sum_of(self.lines)

    @cached_property
    def groups(self) -> list[TermGroup]:
        """The lines that are polynomials, grouped by category and place."""
        named = {value for value in self.constants if value >= SMALLEST_NAMED}
        return groups(self.lines, self.sizes, self.counting, named | self.names.keys())

    @property
    def irregular(self) -> list[MatchedStorages]:
        """The lines that are not polynomials; `requested` includes their bytes at the own size."""
        return [line for line in self.lines if line.polynomial is None]

    @property
    def is_checked(self) -> bool:
        """Whether every storage had the predicted bytes in the check."""
        return not self.check.differing

    def bytes_at(self, **sizes: int) -> int:
        """Requested bytes at other sizes, by keyword of `build` or by letter.

        For a peak, the maximum over this moment and the others.

        Raises:
            InputError: a symbol is missing or unknown, or a part is not a polynomial.
        """
        if self.irregular:
            raise NotPolynomialError()
        by_letter = {letter: key for key, letter in self.symbols.items()}
        given = {by_letter.get(name, name): size for name, size in sizes.items()}
        if given.keys() != self.symbols.keys():
            raise WrongSymbolsError(", ".join(self.symbols))
        point = [given[key] for key in self.symbols]
        others = (polynomial for _, polynomial in self.others)
        return int(max(each.at(point) for each in (self.polynomial, *others)))


def closed_form(
    target: str | Callable[..., Any],
    symbols: Mapping[str, str],
    *,
    of: Subject = "peak",
    sizes: Mapping[str, Sequence[int]] | None = None,
    check: Mapping[str, int] | None = None,
    names: Mapping[int, str] | None = None,
    progress: Progress = lambda message: None,
    **options: Any,
) -> ClosedForm:
    """Find the polynomial by tracing the target at several sizes.

    Args:
        target: a function with keywords, as for `graphmem.analyze`.
        symbols: a letter for each keyword of the function that becomes a symbol.
        of: which bytes.
        sizes: the sizes to trace by keyword, instead of those next to the own size.
        check: the size at which the formula is compared with a trace; default: about half of the
            own size of every symbol.
        names: letters for constants of the model.
        progress: called with a description of each step.
        options: the fields of `graphmem.analysis.Request`.

    Raises:
        InputError: a keyword is unknown or changes nothing, or the step cannot be traced at the
            sizes that the search takes.

    Example:
        >>> form = closed_form("model.py:build", {"batch": "B", "seq": "T"})
        >>> form.bytes_at(batch=8, seq=2048)
    """
    _refuse_letters(symbols, names or {})
    _refuse_unknown(symbols, {"--sizes": sizes or {}, "--check": check or {}})
    traces = Traces(target, Request(**options), tuple(symbols), of, progress)
    own = traces.start()
    found = search(traces, own, sizes or {}, check)
    return ClosedForm(
        target=target if isinstance(target, str) else getattr(target, "__name__", "a callable"),
        subject=of,
        moment=own.moment,
        symbols=dict(symbols),
        sizes=own.sizes,
        lines=tuple(_lines(traces, own, found)),
        counting=tuple(
            traces.differs_in_structure(moved(own.sizes, axis, each.at(1)))
            for axis, each in enumerate(found.nodes)
        ),
        requested=own.observed.requested,
        allocated=own.allocated,
        traced=tuple(found.used),
        confirmed=tuple(found.point(index) for index in found.fit.confirmed()),
        check=found.check,
        nodes=found.nodes,
        others=tuple((str(place.kind), each) for place, each in found.others.items()),
        left_out=found.left_out,
        elsewhere=_elsewhere(traces, own, found) if of == "peak" else {},
        constants=_constants(traces),
        names=dict(names or {}),
    )


def _refuse_letters(symbols: Mapping[str, str], names: Mapping[int, str]) -> None:
    if not symbols:
        raise NoSymbolError()
    letters = [*symbols.values(), *names.values()]
    for letter in letters:
        if not letter.isidentifier() or iskeyword(letter):
            raise WrongLetterError(letter)
        if letters.count(letter) > 1:
            raise SameLetterError(letter)


def _refuse_unknown(
    symbols: Mapping[str, str], options: Mapping[str, Mapping[str, object]]
) -> None:
    for option, given in options.items():
        for key in given.keys() - symbols.keys():
            known = f"symbols are {', '.join(symbols)}"
            raise UnknownSymbolError(option, key, did_you_mean(key, symbols, known))


def _lines(traces: Traces, own: Own, found: FoundForm) -> Iterator[MatchedStorages]:
    matched: dict[Hashable, list[HeldStorage]] = {}
    for held in own.observed.held:
        matched.setdefault(traces.key_of(held), []).append(held)
    for key, members in matched.items():
        yield _line(traces, found, key, members, sum(each.nbytes for each in members))
    for sizes in (*found.used, found.check.sizes):
        for held in traces.at(sizes).held:
            key = traces.key_of(held)
            if key not in matched:  # a storage that does not exist at the model's own size
                matched[key] = [held]
                yield _line(traces, found, key, [held], 0)


def _line(
    traces: Traces, found: FoundForm, key: Hashable, members: Sequence[HeldStorage], nbytes: int
) -> MatchedStorages:
    first = members[0]
    return MatchedStorages(
        polynomial=found.fit.polynomial(key) if found.is_polynomial(key) else None,
        nbytes=nbytes,
        itemsize=first.itemsize,
        category=first.category,
        module=folded(first.module) if traces.by_kind else first.module,
        what=folded(first.what) if traces.by_kind else first.what,
    )


def _elsewhere(traces: Traces, own: Own, found: FoundForm) -> dict[Sizes, int]:
    above = {}
    for sizes in (*found.used, found.check.sizes):
        seen = traces.at(sizes)
        known = max([seen.requested, *seen.requested_at(found.others).values()])
        if seen.highest > known and sizes != own.sizes:
            above[sizes] = seen.highest - known
    return above


def _constants(traces: Traces) -> dict[int, tuple[str, ...]]:
    found: dict[int, tuple[str, ...]] = {}
    for key, default in traces.defaults.items():
        value = traces.request.settings.get(key, default)
        if isinstance(value, str) and value.isdecimal():
            value = int(value)
        if isinstance(value, int) and value > 1 and key not in traces.keys:
            found[value] = (*found.get(value, ()), key)
    return found
