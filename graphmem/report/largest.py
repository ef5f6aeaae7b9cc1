"""Lists of the largest things, in which equal lines are one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def largest(things: Iterable[T], size: Callable[[T], int], count: int) -> list[T]:
    """The `count` largest things, and all others as large as the last of these."""
    by_size = sorted(things, key=size, reverse=True)
    least = min(map(size, by_size[:count]), default=0)
    return [each for each in by_size if size(each) >= least]


def most_common(lines: Iterable[str], most: int) -> Iterator[str]:
    """The `most` most common lines, each once, with the number of its repeats."""
    for line, count in Counter(lines).most_common(most):
        yield f"{count} x {line}" if count > 1 else line
