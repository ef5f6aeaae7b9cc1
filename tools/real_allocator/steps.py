"""The random steps of a case."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from graphmem.allocator.settings import MIB
from tools.real_allocator.allocator import Allocator, RefusedError, Restored
from tools.real_allocator.modes import Mode

STEPS = 400
STREAMS = (0, 0, 0, 7)
"""Of requests; most are on the first."""
SIZES = (
    *(512, 1024, 4096, 100_000, 600_000, MIB, MIB + 1),
    *(size * MIB for size in (2, 3, 5, 9, 10, 12, 20, 33, 64)),
)
"""Sizes that come again, so that free blocks of one size compete; around every limit."""
LARGEST_OTHER = 40 * MIB

Answer = int | Restored | str | None


@dataclass(frozen=True)
class Step:
    """A call of one method of `Allocator` (allocator.py)."""

    method: str
    arguments: tuple[int, ...] = ()

    def take(self, allocator: Allocator) -> Answer:
        """Make the call; returns what it returns, or the text of a refusal."""
        try:
            answer: Answer = getattr(allocator, self.method)(*self.arguments)
        except RefusedError as error:
            return str(error)
        return answer

    def __str__(self) -> str:
        if self.method == "malloc":
            return "malloc of {:,} bytes on stream {}".format(*self.arguments)
        if self.method == "free":
            return "free of {:#x}".format(*self.arguments)
        return f"{self.method}({', '.join(map(str, self.arguments))})"


class Steps:
    """Random steps, by a seed."""

    def __init__(self, seed: int, live: Sequence[int], mode: Mode, captures: bool) -> None:
        """Begin with nothing allocated.

        Args:
            seed: determines the steps.
            live: the addresses of the blocks in use, kept up to date by the caller.
            mode: whether there are private pools, and whether they are given up.
            captures: begin and end captures into them.
        """
        self._random = random.Random(seed)
        self._live = live
        self._mode = mode
        self._captures = captures
        self._capturing = False
        self._open: list[int] = []  # pools that requests go to, the innermost last
        self._users: Counter[int] = Counter()  # of each pool that can be opened again
        self._newest = 0
        self._states: list[int] = []  # the pool of each

    def __iter__(self) -> Iterator[Step]:
        for _ in range(STEPS):
            chance = self._random.random()
            if self._mode.pools and chance < 0.04:
                yield from self._of_pools()
            elif self._mode.checkpoints and 0.04 <= chance < 0.07:
                yield from self._of_states()
            elif self._open and self._captures and chance > 0.995:
                self._capturing = not self._capturing
                yield Step("capture", (int(self._capturing),))
            elif chance < 0.53 or not self._live:
                yield self._request()
            elif chance < 0.985:
                yield Step("free", (self._random.choice(self._live),))
            else:
                yield Step("empty_cache")

    def _request(self) -> Step:
        size = self._random.choice(SIZES)
        if self._random.random() < 0.3:
            size = self._random.randrange(1, LARGEST_OTHER)
        return Step("malloc", (size, self._random.choice(STREAMS)))

    def _of_pools(self) -> Iterator[Step]:
        """Open a pool, new or known, or close the innermost one and perhaps give it up."""
        if self._open and self._random.random() < 0.6:
            if self._capturing and len(self._open) == 1:
                return  # a capture has a pool
            pool = self._open.pop()
            yield Step("end_pool", (pool,))
            if self._mode.gives_up_pools and self._random.random() < 0.3:
                yield from [Step("release_pool", (pool,))] * self._users.pop(pool)
            return
        known = [pool for pool in self._users if pool not in self._open]
        if known and self._random.random() < 0.5:
            pool = self._random.choice(known)
        else:
            self._newest += 1
            pool = self._newest
        self._open.append(pool)
        self._users[pool] += 1
        yield Step("begin_pool", (pool,))

    def _of_states(self) -> Iterator[Step]:
        """Note the state of a pool, or set one again."""
        if self._users and self._random.random() < 0.5:
            pool = self._random.choice(list(self._users))
            self._states.append(pool)
            yield Step("checkpoint", (pool,))
        elif known := [at for at, pool in enumerate(self._states) if pool in self._users]:
            yield Step("restore", (self._random.choice(known),))
