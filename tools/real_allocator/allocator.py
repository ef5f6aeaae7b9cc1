"""What a comparison asks of either allocator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class RefusedError(Exception):
    """A request that does not fit, with PyTorch's text."""


@dataclass(frozen=True)
class Restored:
    """What restoring a pool did: the addresses of the blocks freed, and of those now in use."""

    freed: list[int]
    in_use: list[int]


class Allocator(Protocol):
    """One card's caching allocator. A block is known by its address, a pool by a number."""

    def malloc(self, size: int, stream: int) -> int:
        """Hand out a block.

        Raises:
            RefusedError: the card is full.
        """
        ...

    def free(self, address: int) -> None:
        """Take a block back."""
        ...

    def empty_cache(self) -> None:
        """Return unused memory to the driver."""
        ...

    def begin_pool(self, number: int) -> None:
        """Send requests to a private pool from now on, on every stream."""
        ...

    def end_pool(self, number: int) -> None:
        """Stop sending requests there."""
        ...

    def release_pool(self, number: int) -> None:
        """Take one user off a private pool."""
        ...

    def checkpoint(self, number: int) -> None:
        """Note the state of a private pool."""
        ...

    def restore(self, state: int) -> Restored:
        """Give a private pool a state again; they count from 0.

        Peaks are reset: in PyTorch they depend on the order of a hash set of pointers.

        Raises:
            RefusedError: PyTorch cannot.
        """
        ...

    def capture(self, on: int) -> None:
        """Begin or end the capture of a graph."""
        ...

    def stats(self) -> dict[str, int]:
        """Every statistic, under the name that `torch.cuda.memory_stats` gives it."""
        ...
