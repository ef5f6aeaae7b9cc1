"""Inductor's kernels on the virtual card, which do nothing.

What a kernel takes is what its wrapper allocates for it; what choosing between its configurations
takes, Inductor's own code allocates.
"""

from __future__ import annotations

from typing import Any


class Launcher:
    """A kernel in one configuration: it is launched and does nothing.

    What a compiler would tell of it (registers, shared memory) is not known. It is taken to spill
    no registers: a configuration that does is not timed (`CachingAutotuner.bench`).
    """

    n_regs = None
    n_spills = 0
    shared = None
    store_cubin = False
    cache_hash = None

    def __init__(self, config: Any) -> None:
        self.config = config

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Launch it."""


def precompile(autotuner: Any, *args: Any, **kwargs: Any) -> None:
    """`CachingAutotuner.precompile`, where every configuration compiles."""
    autotuner.launchers = [Launcher(config) for config in autotuner.configs]
