"""Switches of the program that change what an operation does."""

from __future__ import annotations

import enum


class AutocastState(enum.StrEnum):
    """How autocast was involved in an operation."""

    OFF = "off"
    """No region was open."""
    ON = "on"
    """A region was open."""
    CAST = "cast"
    """Autocast inserted the operation to cast an argument of the next one."""


class Determinism(enum.StrEnum):
    """What `torch.use_deterministic_algorithms` asks of an operation."""

    NONE = "none"
    """Nothing."""
    ALGORITHMS = "algorithms"
    """Kernels that always give the same result."""
    FILLED = "filled"
    """The same, and no memory left as it was found (`fill_uninitialized_memory`, on by default)."""
