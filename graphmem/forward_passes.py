"""The forward pass that a report describes: the one that leaves autograd holding most.

A program's last one may be of an incomplete batch, an evaluation that builds a graph, or one that
ran out of memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from graphmem.graph import OwnerKind, PhaseName, StepGraph, Storage

MODEL = "model"
"""The mark at which the model has returned, and a loss outside of it begins."""


def fullest_forward(graph: StepGraph) -> int | None:
    """The forward phase at whose end autograd holds most, the last of equals; None without any.

    One that a backward pass follows, if there is such a phase.
    """
    forwards = [i for i, each in enumerate(graph.phases) if each.name is PhaseName.FORWARD]
    forwards = list(_differentiated(graph)) or forwards
    held = _saved_at_ends([graph.phases[i].end for i in forwards], graph)
    return max(zip(held, forwards, strict=True), default=(0, None))[1]


def saved_at(tick: int, graph: StepGraph) -> list[Storage]:
    """The storages, parameters excepted, that autograd holds at a tick."""
    return [
        storage
        for storage in graph.storages
        if not storage.owned_as(OwnerKind.PARAMETER)
        and any(owner.kind is OwnerKind.SAVED_TENSOR for owner in storage.owners_at(tick))
    ]


def _differentiated(graph: StepGraph) -> Iterator[int]:
    """The forward phases that a backward phase follows before the next forward phase."""
    forward = None
    for i, phase in enumerate(graph.phases):
        if phase.name is PhaseName.FORWARD:
            forward = i
        elif phase.name is PhaseName.BACKWARD and forward is not None:
            yield forward
            forward = None


def _saved_at_ends(ends: Sequence[int], graph: StepGraph) -> list[int]:
    """The bytes of `saved_at` at each of ascending ticks, in one sweep: a program has thousands."""
    changes = [0] * (len(ends) + 1)
    for storage in graph.storages:
        if storage.owned_as(OwnerKind.PARAMETER):
            continue
        counted = 0  # the ends before this one count already: several nodes may save a tensor
        for start, end in sorted(_spans(storage, ends)):
            if end > max(start, counted):
                changes[max(start, counted)] += storage.nbytes
                changes[end] -= storage.nbytes
                counted = end
    return list(accumulate(changes[:-1]))


def _spans(storage: Storage, ends: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The ends, from the first to the one after the last, at which each node holds a storage."""
    for owner in storage.owners:
        if owner.kind is OwnerKind.SAVED_TENSOR:
            last = len(ends) if owner.end is None else bisect_left(ends, owner.end)
            yield bisect_left(ends, owner.start), last
