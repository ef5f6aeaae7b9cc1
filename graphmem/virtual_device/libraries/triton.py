"""Triton without a card: a driver that names one, and kernels that do nothing.

No kernel is built. A kernel uses only memory that its caller allocates in Python, which is followed
like everything else. What kernels of integers compute can be asked for (`triton_values.py`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from graphmem.gpus import Gpu
from graphmem.virtual_device.libraries.imports import prepared
from graphmem.virtual_device.libraries.timing import Timing
from graphmem.virtual_device.libraries.triton_values import follow_launch
from graphmem.virtual_device.libraries.triton_writes import forget_written
from graphmem.virtual_device.patching import replaced

_KERNELS = "triton.runtime.jit"
_CONFIGURATIONS = "triton.runtime.autotuner"
_DEVICES = "torch._dynamo.device_interface"
_WARP = 32
_NEWEST = Timing()


class VirtualDriver:
    """The parts of `CudaDriver` that Triton and Inductor use (triton/backends/nvidia/driver.py).

    Attributes:
        timing: how kernels are timed.
    """

    def __init__(self, gpu: Gpu, timing: Timing = _NEWEST) -> None:
        self.timing = timing
        major, minor = gpu.compute_capability
        self._architecture = 10 * major + minor
        self.utils = SimpleNamespace(get_device_properties=_properties)

    def get_current_target(self) -> Any:
        """The architecture to compile for."""
        target = import_module("triton.backends.compiler").GPUTarget
        return target("cuda", self._architecture, _WARP)

    def get_active_torch_device(self) -> torch.device:
        """The device of the process."""
        return torch.device("cuda", self.get_current_device())

    def get_current_device(self) -> int:
        """The number of that device."""
        return torch.cuda.current_device()

    def get_current_stream(self, device: int | None = None) -> int:
        """0: kernels that do nothing need no stream."""
        return 0

    def get_device_interface(self) -> Any:
        """The module for devices and events."""
        return torch.cuda

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        """The buffer that flushes the card's cache between timed calls."""
        return torch.empty(self.timing.flushed_bytes // 4, dtype=torch.int, device="cuda")

    def clear_cache(self, cache: torch.Tensor) -> None:
        """Write that buffer, as `triton.testing.do_bench` does before each timed call."""
        cache.zero_()

    def get_benchmarker(self) -> Callable[..., Any]:
        """The timer of `@triton.autotune`'s configurations: all are equally fast."""

        def benchmark(call: Callable[[], object], quantiles: Any = None, **options: Any) -> Any:
            run_timed(call, self.timing.flushed_bytes)  # `triton.testing.do_bench`
            return 1.0 if quantiles is None else [1.0] * len(quantiles)

        return benchmark


def _properties(index: int) -> dict[str, int]:
    """`getDeviceProperties` (triton/backends/nvidia/driver.c), but for clocks and bus width."""
    card: Any = torch.cuda.get_device_properties(index)
    return {
        "max_shared_mem": card.shared_memory_per_block_optin,
        "max_num_regs": card.regs_per_multiprocessor,
        "multiprocessor_count": card.multi_processor_count,
        "warpSize": card.warp_size,
    }


def run_timed(call: Callable[[], object], flushed_bytes: int) -> None:
    """Allocate what a benchmark does: the timed calls run beside a buffer that flushes the cache.

    A card repeats the calls, which free what they allocate.
    """
    call()  # once before the buffer exists
    cache = torch.empty(flushed_bytes // 4, dtype=torch.int, device="cuda")
    call()
    del cache


@contextmanager
def standing_in(gpu: Gpu, timing: Timing) -> Iterator[None]:
    """Make Triton see a card, whether it is imported already or later."""
    with (
        prepared(_KERNELS, lambda kernels: _on_card(kernels, VirtualDriver(gpu, timing))),
        prepared(_CONFIGURATIONS, _untimed),
        prepared(_DEVICES, _with_events),
    ):
        yield


def is_installed() -> bool:
    """Whether Triton can be imported."""
    return importlib.util.find_spec("triton") is not None


@contextmanager
def _on_card(kernels: ModuleType, card: VirtualDriver) -> Iterator[None]:
    """Give Triton the virtual driver, and make its kernels do nothing."""
    driver = import_module("triton.runtime.driver").driver
    before = dict(vars(driver))  # `reset_active` would make a real driver, which needs a card
    driver.set_active(card)
    try:
        with replaced([(kernels.JITFunction, "run", _launch)]):
            yield
    finally:
        vars(driver).clear()
        vars(driver).update(before)


@contextmanager
def _untimed(autotuner: ModuleType) -> Iterator[None]:
    """Have each run choose configurations as the first on a machine does.

    `@triton.autotune(cache_results=True)` keeps timings in the user's cache, where the card would
    find these.
    """
    if hasattr(autotuner.Autotuner, "check_disk_cache"):
        with replaced([(autotuner.Autotuner, "check_disk_cache", _benchmark)]):
            yield
    else:
        yield


@contextmanager
def _with_events(devices: ModuleType) -> Iterator[None]:
    """Give Triton 3.1's `do_bench` the card's events: it takes them from Dynamo's table."""
    cuda: Any = devices.CudaInterface
    with replaced([(cuda, name, getattr(torch.cuda, name)) for name in ("Event", "Stream")]):
        yield


def _benchmark(
    autotuner: Any, tuning_key: Any, configs: Any, bench_fn: Callable[[], object]
) -> bool:
    """`Autotuner.check_disk_cache` where no timings are kept."""
    bench_fn()
    return False


def _launch(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
    """`JITFunction.run` (triton/runtime/jit.py), which compiles the kernel and launches it."""
    for hook in kernel.pre_run_hooks:
        hook(*args, **options)
    if not warmup and not follow_launch(kernel, args, options, grid):
        forget_written(kernel, args, options)
