"""Inductor's kernels on the virtual card, which do nothing.

The wrapper allocates a kernel's memory; Inductor's own code allocates what choosing between its
configurations takes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

_MOST_REGISTERS = 255
"""Of a thread, on every card (CUDA C++ Programming Guide, "Compute Capabilities")."""


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


class Compiled:
    """One configuration, compiled (`CompileResult`)."""

    def __init__(self, config: Any, registers: int | None = None) -> None:
        self.config = config
        self.kernel = SimpleNamespace(n_regs=registers)

    def make_launcher(self) -> Launcher:
        """A launcher, for which a card would load the kernel."""
        return Launcher(self.config)


def precompiling(registers: Callable[[Any, Any], int | None]) -> Callable[..., None]:
    """`CachingAutotuner.precompile`, in which every configuration compiles.

    A reduction that needs so many registers that a multiprocessor runs fewer threads than it could
    gets a second configuration, with a smaller block (`_dynamic_scale_rblock`). The two are then
    timed, in every run: what was found for kernels of one configuration is not read from the cache
    (`check_autotune_cache`, torch/_inductor/runtime/triton_heuristics.py). An H100 timed ten
    kernels of torchao's compiled optimizers so (fixtures/cuda/scripts/optim_torchao).

    Args:
        registers: counts those of a kernel in one of its configurations; None if that is unknown.
    """

    def precompile(autotuner: Any, *args: Any, **kwargs: Any) -> None:
        _compile(autotuner, lambda config: _MOST_REGISTERS)
        if len(autotuner.launchers) > len(autotuner.configs):
            _compile(autotuner, partial(registers, autotuner))

    return precompile


def _compile(autotuner: Any, registers: Callable[[Any], int | None]) -> None:
    autotuner.compile_results = [
        Compiled(config, registers(config)) for config in autotuner.configs
    ]
    make_launchers(autotuner)
    autotuner._dynamic_scale_rblock()


def make_launchers(autotuner: Any) -> None:
    """`CachingAutotuner._make_launchers`, which on a card loads the kernels."""
    autotuner.launchers = [each.make_launcher() for each in autotuner.compile_results]


def precompile_config(autotuner: Any, config: Any, *args: Any, **kwargs: Any) -> Compiled:
    """`CachingAutotuner._precompile_config`, for neighbours that coordinate descent tries."""
    return Compiled(config)
