"""What only a card knows of a compilation: who answers lists it in the report."""

from __future__ import annotations

from typing import Protocol


class Unknowns(Protocol):
    """Answers, and notes what was assumed."""

    def pads(self) -> bool:
        """Whether a product of unaligned matrices is padded, which a benchmark decides."""

    def broke(self) -> None:
        """A graph breaks in graphmem, as it would not on a card."""

    def graphs_left_out(self) -> None:
        """Compiled code runs without the CUDA graph in which it would be captured."""
