"""Triton on the virtual card: a driver that names the card, and kernels that do nothing.

No kernel is built: what a kernel takes is what its caller allocates for it, and that is Python's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from graphmem.gpus import Gpu

_WARP = 32


@contextmanager
def virtual_driver(gpu: Gpu) -> Iterator[None]:
    """Have Triton believe in a card while the context is open."""
    from triton.runtime.driver import driver

    before = dict(vars(driver))  # its own way back makes a driver, which asks for a card
    driver.set_active(VirtualDriver(gpu))
    try:
        yield
    finally:
        vars(driver).clear()
        vars(driver).update(before)


class VirtualDriver:
    """What Triton and Inductor ask of `CudaDriver` (triton/backends/nvidia/driver.py)."""

    def __init__(self, gpu: Gpu) -> None:
        major, minor = gpu.compute_capability
        self._architecture = 10 * major + minor

    def get_current_target(self) -> Any:
        """The architecture to compile for."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self._architecture, _WARP)

    def get_active_torch_device(self) -> torch.device:
        """The one device there is."""
        return torch.device("cuda", 0)

    def get_current_device(self) -> int:
        """Its number."""
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        """A stream's address; kernels that do nothing have no use for it."""
        return 0

    def get_device_interface(self) -> Any:
        """What knows of devices and events."""
        return torch.cuda

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        """What `triton.testing.do_bench` writes between calls."""
        return torch.empty(FLUSHED_BYTES // 4, dtype=torch.int, device="cuda")


FLUSHED_BYTES = 256 << 20
"""`CudaDriver.get_empty_cache_for_benchmark`."""


class Launcher:
    """A kernel in one configuration: it is launched and does nothing.

    What a compiler would tell of it (registers, spilled ones, shared memory) is not known.
    """

    n_regs = None
    n_spills = None
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
