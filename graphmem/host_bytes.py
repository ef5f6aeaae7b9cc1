"""The host's memory in figures: tensors on the CPU, and page-locked bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostBytes:
    """The host's memory: the most bytes of each kind, each at its own moment, and what was copied.

    Attributes:
        pinned: page-locked by PyTorch, in blocks of powers of two that it keeps.
        pinned_requested: what pinned tensors need.
        tensors: tensors on the CPU, pinned ones included, from the first iteration on.
        copied: all that was copied there from the card.
    """

    pinned: int
    pinned_requested: int
    tensors: int
    copied: int
