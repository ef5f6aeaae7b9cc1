"""Inductor's kernels on the virtual card, which do nothing.

The wrapper allocates a kernel's memory; Inductor's own code allocates what choosing between its
configurations takes.
"""

from __future__ import annotations

from typing import Any


class Launcher:
    """A kernel in one configuration, whose launch does nothing.

    Its registers and shared memory, which a compiler would report, are unknown. It is assumed to
    spill no registers: a configuration that does is not timed (`CachingAutotuner.bench`).
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
    """`CachingAutotuner.precompile`, in which every configuration compiles."""
    autotuner.launchers = [Launcher(config) for config in autotuner.configs]


class Compiled:
    """One configuration, compiled (`CompileResult`)."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def make_launcher(self) -> Launcher:
        """A launcher, for which a card would load the kernel."""
        return Launcher(self.config)


def precompile_config(autotuner: Any, config: Any, *args: Any, **kwargs: Any) -> Compiled:
    """`CachingAutotuner._precompile_config`, for neighbours that coordinate descent tries."""
    return Compiled(config)
