"""The first collective in which ranks of a group differ.

(1) Each group's ranks are compared among themselves, those that ran, on each device. Operations and
    the tensors that must be alike are compared; the lines may differ.
(2) A rank that makes one more than another differs as well, unless `--max-steps` stopped either.
(3) Messages from one rank to another are compared as collectives of the two, each with a tag for
    itself: their number, and the elements of each.
(4) Where ranks gave different values into a collective and each went on with its own, they may
    differ later for this reason alone, also in another group or on another device. Such a
    difference is in doubt: it is told with that line. In a group of both ranks it is their own
    values that must differ, else those of any two ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from graphmem.ranks.journal import Collectives, Kind, OfGroup


@dataclass(frozen=True)
class Mismatch:
    """Two ranks that differ, with what each does.

    Attributes:
        ranks: their numbers.
        did: the collective or message of each, in words.
        doubt: where values were exchanged that may have caused it; None if nothing can have.
        are_messages: whether messages differ, not collectives.
    """

    ranks: tuple[int, int]
    did: tuple[str, str]
    doubt: str | None
    are_messages: bool = False

    def __str__(self) -> str:
        (one, other), (first, second) = self.ranks, self.did
        return f"\n  rank {one}: {first}\n  rank {other}: {second}"


def first_mismatch(found: Mapping[int, Collectives]) -> Mismatch | None:
    """Compare ranks by number; one beyond doubt comes first."""
    differences = list(_mismatches(found))
    certain = (each for each in differences if each.doubt is None)
    return next(certain, next(iter(differences), None))


_ByGroup = dict[tuple[tuple[int, ...], int, str, tuple[int, ...]], dict[int, OfGroup]]
"""What each rank made, by the group's ranks and number, the device, and the way of messages."""


def _mismatches(found: Mapping[int, Collectives]) -> Iterator[Mismatch]:
    by_group: _ByGroup = {}
    for rank, journal in found.items():
        for each in journal.sequences:
            key = tuple(each.ranks), each.number, each.device, each.way
            by_group.setdefault(key, {})[rank] = each
    for (ranks, number, device, way), made in by_group.items():
        one, *others = [rank for rank in sorted(way[:2]) or ranks if rank in found]
        nothing = OfGroup(list(ranks), number, device, way)
        for other in others:
            first, second = (
                _Side(rank, found[rank], made.get(rank, nothing)) for rank in (one, other)
            )
            position = _first_difference(first, second)
            if position is not None:
                did = first.in_words(position), second.in_words(position)
                doubts = (
                    *_doubts(first, second, position, by_group),
                    *_doubts(second, first, position, by_group),
                )
                doubt = min(doubts)[1] if doubts else None
                yield Mismatch((one, other), did, doubt, bool(way))


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
        return f"no {'further ' * bool(position)}{self._what}{last}"

    @property
    def _what(self) -> str:
        if not self.made.way:
            return f"collective of this group on {self.made.device}"
        source, destination, *_ = self.made.way
        is_sent = source == self.rank
        return f"message to rank {destination}" if is_sent else f"message from rank {source}"


def _first_difference(one: _Side, other: _Side) -> int | None:
    for position in range(max(len(one.made.made), len(other.made.made))):
        first, second = one.kind(position), other.kind(position)
        if first is None or second is None:
            is_stopped = one.journal.is_stopped or other.journal.is_stopped
            return None if is_stopped else position
        if (first.operation, first.alike) != (second.operation, second.alike):
            return position
    return None


def _doubts(
    side: _Side, other: _Side, position: int, by_group: _ByGroup
) -> Iterator[tuple[int, str]]:
    """Where a rank first gave in other values than another before it differed, for each group."""
    order = side.made.order
    until = order[position] if position < len(order) else math.inf
    for (ranks, *_), made in by_group.items():
        own = made.get(side.rank)
        if own is None:
            continue
        compared = [other.rank] if other.rank in ranks else ranks
        unlike = (_first_unlike(own, made[each]) for each in compared if each in made)
        found = min(unlike, default=len(own.made))
        if found < len(own.made) and own.order[found] < until:
            yield own.order[found], side.journal.kinds[own.made[found]].place


def _first_unlike(own: OfGroup, other: OfGroup) -> int:
    """The first collective into which two ranks gave different values; else their number."""
    both = min(len(own.made), len(other.made))
    unlike = own.values.items() ^ other.values.items()
    return min((position for position, _ in unlike if position < both), default=len(own.made))
