"""Predict whether a step of another size would fit, from traces of two sizes, or of one.

Clauses:
  (1) two traces are similar if they allocate and free the same storages in the same order;
  (2) each storage's bytes are assumed to lie on a line through both sizes, and the events are
      replayed on the card with the bytes that the line gives;
  (3) with a single trace, bytes divisible by a large prime factor of its size are assumed to grow
      with it: a batch of 38 shows in sizes divisible by 19, which no width of a model is.

The result is a guess: sizes that are rounded, or that switch kernels, are on no line. Callers
verify it by a trace.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphmem.allocator import Block, OutOfMemory
from graphmem.capacity import can_do_without
from graphmem.events import Birth, CacheEmptied
from graphmem.graph import StepGraph
from graphmem.pipeline import Annotations
from graphmem.runtime import Runtime
from graphmem.simulate import all_events

_EMPTIES = -1


@dataclass(frozen=True)
class Sizes:
    """The allocations and frees of one trace.

    Attributes:
        order: for each event the number of the storage, by birth; its second occurrence frees it.
            `_EMPTIES` where the program empties the cache.
        nbytes: the bytes of each storage.
        dispensable: the numbers of storages that the step can do without.
    """

    order: tuple[int, ...]
    nbytes: tuple[int, ...]
    dispensable: frozenset[int]


def sizes_of(graph: StepGraph, annotations: Annotations) -> Sizes:
    """Collect the allocations and frees of a trace."""
    from graphmem.annotations import KERNEL_MEMORY

    numbers: dict[int, int] = {}
    order: list[int] = []
    nbytes: list[int] = []
    dispensable: set[int] = set()
    for event in all_events(graph, annotations.of(KERNEL_MEMORY).programs):
        if isinstance(event, CacheEmptied):
            order.append(_EMPTIES)
            continue
        storage = event.storage
        if isinstance(event, Birth):
            numbers[storage.id] = len(nbytes)
            nbytes.append(storage.nbytes)
            if can_do_without(storage):
                dispensable.add(numbers[storage.id])
        order.append(numbers[storage.id])
    return Sizes(tuple(order), tuple(nbytes), frozenset(dispensable))


@dataclass(frozen=True)
class Line:
    """A line through two sizes of one step, from which all sizes follow."""

    first: int
    sizes: Sizes
    second: int
    other: Sizes

    @classmethod
    def through(cls, known: dict[int, Sizes]) -> Line | None:
        """The line through the two largest similar sizes, or None."""
        values = sorted(known, reverse=True)
        for second in values:
            for first in values[values.index(second) + 1 :]:
                if known[first].order == known[second].order:
                    return cls(first, known[first], second, known[second])
        return None

    @classmethod
    def alone(cls, value: int, sizes: Sizes) -> Line | None:
        """The line through zero and one size, by clause (3); None without a large prime factor."""
        prime = large_prime_of(value)
        if prime is None:
            return None
        twice = tuple(2 * each if each % prime == 0 else each for each in sizes.nbytes)
        return cls(value, sizes, 2 * value, Sizes(sizes.order, twice, sizes.dispensable))

    def fits(self, value: int, runtime: Runtime) -> bool:
        """Whether the step of that size is predicted to fit on the runtime's card."""
        allocator = runtime.new_allocator()
        nbytes = self.nbytes(value)
        blocks: dict[int, Block | None] = {}
        for number in self.sizes.order:
            if number == _EMPTIES:
                allocator.empty_cache()
            elif number in blocks:
                block = blocks.pop(number)
                if block is not None:
                    allocator.free(block)
            else:
                try:
                    blocks[number] = allocator.malloc(nbytes[number])
                except OutOfMemory:
                    if number not in self.sizes.dispensable:
                        return False
                    blocks[number] = None
        return True

    def nbytes(self, value: int) -> list[int]:
        """The predicted bytes of each storage."""
        above, apart = value - self.first, self.second - self.first
        pairs = zip(self.sizes.nbytes, self.other.nbytes, strict=True)
        return [max(1, low + (high - low) * above // apart) for low, high in pairs]


def large_prime_of(value: int) -> int | None:
    """The largest prime factor of a number, if it is rare in a model's dimensions; else None."""
    rest = value
    for small in (2, 3, 5, 7):
        while rest % small == 0:
            rest //= small
    factor = 11
    while factor * factor <= rest:
        rest, factor = (rest // factor, factor) if rest % factor == 0 else (rest, factor + 2)
    return rest if rest > 1 else None
