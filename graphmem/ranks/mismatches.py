"""The first collective in which ranks of a group differ.

(1) Each group's ranks are compared among themselves, those that ran, on each device. Operations and
    the tensors that must be alike are compared; the lines may differ.
(2) A rank that makes one more than another differs as well, unless `--max-steps` stopped either.
(3) Where ranks gave different values into a collective and each went on with its own, they may
    differ later for this reason alone. Such a difference is in doubt: it is told with that line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from graphmem.ranks.journal import Collectives, Kind, OfGroup


@dataclass(frozen=True)
class Mismatch:
    """Two ranks that differ, with what each does.

    Attributes:
        ranks: their numbers.
        did: the collective of each, in words.
        doubt: where values were exchanged that may have caused it; None if nothing can have.
    """

    ranks: tuple[int, int]
    did: tuple[str, str]
    doubt: str | None

    def __str__(self) -> str:
        (one, other), (first, second) = self.ranks, self.did
        return f"\n  rank {one}: {first}\n  rank {other}: {second}"


def first_mismatch(found: Mapping[int, Collectives]) -> Mismatch | None:
    """Compare ranks by number; one beyond doubt comes first."""
    differences = list(_mismatches(found))
    certain = (each for each in differences if each.doubt is None)
    return next(certain, next(iter(differences), None))


def _mismatches(found: Mapping[int, Collectives]) -> Iterator[Mismatch]:
    by_group: dict[tuple[tuple[int, ...], int, str], dict[int, OfGroup]] = {}
    for rank, journal in found.items():
        for each in journal.sequences:
            by_group.setdefault((tuple(each.ranks), each.number, each.device), {})[rank] = each
    for (ranks, number, device), made in by_group.items():
        one, *others = [rank for rank in ranks if rank in found]
        nothing = OfGroup(list(ranks), number, device)
        for other in others:
            pair = tuple(_Side(rank, found[rank], made.get(rank, nothing)) for rank in (one, other))
            mismatch = _compared(*pair)
            if mismatch is not None:
                yield mismatch


@dataclass(frozen=True)
class _Side:
    """A rank's part of a comparison."""

    rank: int
    journal: Collectives
    made: OfGroup

    def kind(self, position: int) -> Kind | None:
        of = self.made.made
        return self.journal.kinds[of[position]] if position < len(of) else None

    def in_words(self, position: int) -> str:
        kind = self.kind(position)
        if kind is not None:
            tensors = f" of {kind.tensors}" if kind.tensors else ""
            return f"{kind.name}{tensors}" + (f" at {kind.place}" if kind.place else "")
        last = f"; its last is {self.in_words(position - 1)}" if position else ""
        return (
            f"no {'further ' * bool(position)}collective of this group on {self.made.device}{last}"
        )


def _compared(one: _Side, other: _Side) -> Mismatch | None:
    lengths = len(one.made.made), len(other.made.made)
    doubt = None
    for position in range(max(lengths)):
        first, second = one.kind(position), other.kind(position)
        if first is None or second is None:
            if one.journal.is_stopped or other.journal.is_stopped:
                return None
        elif (first.operation, first.alike) == (second.operation, second.alike):
            if doubt is None and _values_differ(one, other, position):
                doubt = first.place
            continue
        did = one.in_words(position), other.in_words(position)
        return Mismatch((one.rank, other.rank), did, doubt)
    return None


def _values_differ(one: _Side, other: _Side, position: int) -> bool:
    return one.made.values.get(position) != other.made.values.get(position)
