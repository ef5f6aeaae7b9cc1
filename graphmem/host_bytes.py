"""The host's memory in figures: tensors on the CPU, and page-locked bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostBytes:
    """The most bytes in the host's memory, each figure at its own moment.

    Attributes:
        pinned: page-locked by PyTorch, in blocks of powers of two that it keeps.
        pinned_requested: what pinned tensors need.
        tensors: tensors on the CPU, pinned ones included, from the first iteration on.
    """

    pinned: int
    pinned_requested: int
    tensors: int
