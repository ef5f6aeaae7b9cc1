"""Questions about a compilation that only a card can answer; the report lists the answers used."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from graphmem.trace.compiled.padding import Product


class Unknowns(Protocol):
    """Answers such questions, and notes what was assumed."""

    def pads(self, product: Product) -> bool:
        """Whether a product of unaligned matrices is padded; on a card, a benchmark decides."""

    def tuned(self) -> bool:
        """Whether an earlier run has chosen among the configurations of each kernel."""

    def tunes(self) -> None:
        """Note that max-autotune compares kernels, some of them in ways that are not followed."""

    def flushes(self, nbytes: int) -> None:
        """Note that a benchmark flushes a cache whose size is not known, taken to be `nbytes`."""

    def unseen(self) -> AbstractContextManager[None]:
        """A context whose copies to the host the program does not read."""

    def broke(self) -> None:
        """Note a graph break in graphmem, which would not happen on a card."""

    def graphs_left_out(self) -> None:
        """Note that compiled code runs outside the CUDA graph that would capture it."""
