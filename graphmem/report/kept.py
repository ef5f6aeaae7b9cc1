"""Storages that a program keeps from one iteration to the next.

A storage that autograd or a variable holds is *kept by the script* at a moment if it was born
before the optimizer's step that ended the previous iteration; without an optimizer, before the
previous iteration. One made after that step, or before the first iteration, is kept if it is alive
in the next iteration but one, or, without one, after the step that ends the next: as a list of
averaged weights or a copy of the best ones, and not as the next batch.

Nor are those that autograd holds until a backward pass releases them: a generator's activations,
made before the step of its critic, await its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cache
from operator import attrgetter

from graphmem.graph import Category, OwnerKind, PhaseName, StepGraph, Storage


class Categories:
    """Assigns categories to a graph's storages."""

    def __init__(self, graph: StepGraph) -> None:
        """Prepare the categories of the graph of a trace, or of a program."""
        self._starts: dict[int, int] = {}
        for phase in graph.phases:
            self._starts.setdefault(phase.step, phase.start)
        self._spans = sorted((phase.start, phase.step) for phase in graph.phases)
        self._backward = [each for each in graph.phases if each.name is PhaseName.BACKWARD]
        self._marks = [mark.tick for mark in graph.marks if mark.name == "optimizer.step"]
        self._kept_before = cache(self._find_kept_before)
        self._end_of_next = cache(self._find_end_of_next)

    def of(self, storage: Storage, tick: int) -> Category:
        """The category of a storage's bytes at a tick."""
        category = storage.category_at(tick)
        if category not in (Category.ACTIVATION, Category.TEMPORARY) or not self._starts:
            return category
        step = self._step_at(tick)
        is_kept = storage.birth < self._kept_before(step) or self._lasts(storage, step)
        return Category.KEPT if is_kept and not self._awaits(storage, tick) else category

    def _lasts(self, storage: Storage, step: int) -> bool:
        """Whether a storage is older than an iteration and outlives the next one."""
        start, end = self._starts.get(step), self._end_of_next(step)
        if start is None or end is None or storage.birth >= start:
            return False
        return storage.death is None or storage.death > end

    def _find_end_of_next(self, step: int) -> int | None:
        """When the next iteration but one begins or, without one, the next one's step has ended."""
        begins = self._starts.get(step + 1)
        if begins is None:
            return None
        mark = bisect_left(self._marks, begins)
        return self._starts.get(step + 2, next(iter(self._marks[mark:]), None))

    def _awaits(self, storage: Storage, tick: int) -> bool:
        """Whether a backward pass will release what autograd holds."""
        return any(
            owner.kind is OwnerKind.SAVED_TENSOR
            and owner.end is not None
            and self._is_in_backward(owner.end)
            for owner in storage.owners_at(tick)
        )

    def _is_in_backward(self, tick: int) -> bool:
        index = bisect_right(self._backward, tick, key=attrgetter("start")) - 1
        return index >= 0 and tick <= self._backward[index].end

    def _step_at(self, tick: int) -> int:
        index = bisect_left(self._spans, (tick + 1, -1)) - 1
        return self._spans[index][1] if index >= 0 else -1

    def _find_kept_before(self, step: int) -> int:
        start = self._starts.get(step)
        if step < 1 or start is None:
            return -1
        before = bisect_left(self._marks, start)
        return self._marks[before - 1] if before else self._starts.get(step - 1, -1)
