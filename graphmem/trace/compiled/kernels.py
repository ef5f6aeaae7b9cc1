"""Inductor's kernels on the virtual card, which do nothing.

The wrapper allocates a kernel's memory; Inductor's own code allocates what choosing between its
configurations takes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from graphmem.trace.compiled.registers import UNKNOWN, Usage

_MOST = Usage(registers=255)
"""Of a thread, on every card (CUDA C++ Programming Guide, "Compute Capabilities")."""


class Launcher:
    """A kernel in one configuration, whose launch does nothing."""

    n_regs = None
    shared = None
    store_cubin = False
    cache_hash = None

    def __init__(self, config: Any, spills: int) -> None:
        self.config = config
        self.n_spills = spills

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Launch it."""


class Compiled:
    """One configuration, compiled (`CompileResult`)."""

    def __init__(self, config: Any, usage: Usage = UNKNOWN) -> None:
        self.config = config
        self.kernel = SimpleNamespace(n_regs=usage.registers)
        self._spills = usage.spills

    def make_launcher(self) -> Launcher:
        """A launcher, for which a card would load the kernel."""
        return Launcher(self.config, self._spills)


def precompiling(usage: Callable[[Any, Any], Usage]) -> Callable[..., None]:
    """`CachingAutotuner.precompile`, in which every configuration compiles.

    A reduction that needs so many registers that a multiprocessor runs fewer threads than it could
    gets a second configuration, with a smaller block (`_dynamic_scale_rblock`), and the two are
    timed. Up to torch 2.13 that is so in every run: for kernels of one configuration no choice is
    read from the cache (`check_autotune_cache`, torch/_inductor/runtime/triton_heuristics.py). An
    H100 timed kernels of torchao's compiled optimizers so (fixtures/cuda/scripts/optim_torchao).

    Args:
        usage: counts the registers of a kernel in a configuration.
    """

    def precompile(autotuner: Any, *args: Any, **kwargs: Any) -> None:
        _compile(autotuner, lambda config: _MOST)
        if len(autotuner.launchers) > len(autotuner.configs):
            _compile(autotuner, partial(usage, autotuner))

    return precompile


def precompiling_whole(
    precompile: Callable[[Any], None], usage: Callable[[Any, Any], Usage]
) -> Callable[..., None]:
    """The same up to torch 2.6, where PyTorch's own `precompile` makes the second configurations.

    Args:
        precompile: PyTorch's.
        usage: counts the registers of a kernel in a configuration.
    """

    def run(autotuner: Any, *args: Any, **kwargs: Any) -> None:
        if autotuner.launchers:
            return
        configs = autotuner.configs
        for count in (lambda config: _MOST, partial(usage, autotuner)):
            autotuner.launchers, autotuner.configs = [], configs
            autotuner._precompile_config = partial(_compiled_and_launcher, count)
            precompile(autotuner)
            if len(autotuner.launchers) == len(configs):
                return

    return run


def _compiled_and_launcher(
    usage: Callable[[Any], Usage], config: Any, *args: Any
) -> tuple[Any, Launcher]:
    """`CachingAutotuner._precompile_config` up to torch 2.6."""
    made = Compiled(config, usage(config))
    return made.kernel, made.make_launcher()


def _compile(autotuner: Any, usage: Callable[[Any], Usage]) -> None:
    autotuner.compile_results = [Compiled(config, usage(config)) for config in autotuner.configs]
    make_launchers(autotuner)
    autotuner._dynamic_scale_rblock()


def make_launchers(autotuner: Any) -> None:
    """`CachingAutotuner._make_launchers`, which on a card loads the kernels."""
    autotuner.launchers = [each.make_launcher() for each in autotuner.compile_results]


def precompile_config(autotuner: Any, config: Any, *args: Any, **kwargs: Any) -> Compiled:
    """`CachingAutotuner._precompile_config`, for neighbours that coordinate descent tries."""
    return Compiled(config)
