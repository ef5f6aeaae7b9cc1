"""Messages for which two ranks wait at the same time: both send first, or both receive first.

The messages of two ranks of a group wait for each other in the order of the program, whichever way
they go: NCCL has one communicator for the two, and one stream of it on each card (`getKeySendRecv`
in torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp). Those of `batch_isend_irecv` begin together.

(1) If both receive first, neither ever sends.
(2) If both send first, each waits until the other receives, unless NCCL can buffer what is sent.
    How much that is depends on the cards' links, so this is told, and is no error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from graphmem.ranks.journal import Collectives, Kind
from graphmem.ranks.mismatches import Mismatch

_BATCH = "batch_isend_irecv"


class _Message(NamedTuple):
    """A message at its place in a rank's order."""

    order: int
    is_sent: bool
    kind: Kind

    def __str__(self) -> str:
        return f"{self.kind.name} of {self.kind.tensors} at {self.kind.place}"


_Pair = tuple[tuple[int, ...], int, tuple[int, int]]
"""A group's ranks and its number, and two of them."""


class Crossing(NamedTuple):
    """Two ranks that wait for each other.

    Attributes:
        is_certain: whether nothing can help: both receive.
        mismatch: the ranks, and the message of each.
    """

    is_certain: bool
    mismatch: Mismatch


def first_crossing(found: Mapping[int, Collectives]) -> Crossing | None:
    """Find two ranks that wait for each other; those that do so for certain come first."""
    crossings = list(_crossings(found))
    certain = (each for each in crossings if each.is_certain)
    return next(certain, next(iter(crossings), None))


def _crossings(found: Mapping[int, Collectives]) -> Iterator[Crossing]:
    made: dict[_Pair, dict[int, list[_Message]]] = {}
    for rank, journal in found.items():
        for pair, message in _messages(rank, journal):
            made.setdefault(pair, {}).setdefault(rank, []).append(message)
    for (*_, (one, other)), by_rank in made.items():
        sides = (
            sorted(by_rank.get(rank, ()), key=lambda each: each.order) for rank in (one, other)
        )
        for first, second in zip(*sides, strict=False):
            if first.is_sent == second.is_sent:
                did = str(first), str(second)
                yield Crossing(not first.is_sent, Mismatch((one, other), did, None, True))
                break


def _messages(rank: int, journal: Collectives) -> Iterator[tuple[_Pair, _Message]]:
    """A rank's messages on the card, but those of batches."""
    for each in journal.sequences:
        if each.way and each.device == "cuda":
            source, destination, *_ = each.way
            two = min(source, destination), max(source, destination)
            for order, number in zip(each.order, each.made, strict=True):
                kind = journal.kinds[number]
                if kind.name != _BATCH:
                    message = _Message(order, source == rank, kind)
                    yield (tuple(each.ranks), each.number, two), message
