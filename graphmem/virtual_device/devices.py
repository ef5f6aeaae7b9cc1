"""The devices of the machine, and the one that the process uses.

Replaces the functions of torch/csrc/cuda/Module.cpp and torch/csrc/DeviceAccelerator.cpp on which
torch/cuda/__init__.py and torch/accelerator/__init__.py are built. Naming a device that does not
exist raises the driver's error.

A rank sees every card of its node and uses its own. The memory of the others belongs to ranks
that are not running, so a tensor on one of them is refused.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from graphmem.gpus import Gpu
from graphmem.virtual_device.device_properties import DeviceProperties
from graphmem.virtual_device.nvml import nvml
from graphmem.virtual_device.patching import Replacement
from graphmem.virtual_device.sensors import sensors

# The CUDA version of a release's PyPI wheel, and the architectures it has kernels for: read in
# the wheel of 2.13.0, for the others in the release's RELEASE.md and .ci/manywheel/build_cuda.sh.
_CUDA_OF_RELEASE: tuple[tuple[tuple[int, int], str, str], ...] = (
    ((2, 11), "13.0", "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"),
    ((2, 9), "12.8", "sm_70 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120"),
    ((2, 8), "12.8", "sm_70 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120"),
    ((2, 7), "12.6", "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90"),
    ((2, 5), "12.4", "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90"),
    ((0, 0), "12.1", "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90"),
)


class _Current(threading.local):
    """The current device of each thread (`cudaGetDevice`)."""

    index = 0


class Devices:
    """The cards that a process sees.

    Attributes:
        count: the number of cards.
        own: the index of the one it uses.
        is_initialized: whether the program has used CUDA (`torch.cuda.is_initialized`).
    """

    def __init__(self, count: int = 1, own: int = 0) -> None:
        self.count = count
        self.own = own
        self.is_initialized = False
        self._current = _Current()

    @property
    def current(self) -> int:
        """The device of the calling thread."""
        self.is_initialized = True
        return self._current.index

    def check(self, index: int) -> None:
        """Make only the checks of `cudaSetDevice`.

        Raises:
            torch.AcceleratorError: there is no such device (before torch 2.8, `RuntimeError`).
        """
        self.is_initialized = True
        if index >= self.count:
            error = getattr(torch, "AcceleratorError", RuntimeError)
            raise error(f"CUDA error: invalid device ordinal\n{_help()}\n")

    def set(self, index: int) -> None:
        """`cudaSetDevice`; negative indices are ignored (`THCPModule_setDevice_wrap`)."""
        if index >= 0:
            self.check(index)
            self._current.index = index

    def exchange(self, index: int) -> int:
        """Make a device current and return the previous one; a negative index changes nothing."""
        if index < 0:
            return -1
        before = self.current
        self.set(index)
        return before

    @contextmanager
    def afresh(self) -> Iterator[None]:
        """Let the context begin as a new process does, with the first card and CUDA unused."""
        before = self._current.index, self.is_initialized
        self._current.index, self.is_initialized = 0, False
        try:
            yield
        finally:
            self._current.index, self.is_initialized = before

    def can_access_peer(self, device: int, peer: int) -> bool:
        """Whether the two are different cards: all of a node are peers (`get_p2p_access`)."""
        self.check(device)
        self.check(peer)
        return device != peer


def device_replacements(
    gpu: Gpu, torch_release: tuple[int, int], devices: Devices
) -> list[Replacement]:
    """List the replacements of the device functions."""
    properties = DeviceProperties(gpu)
    exchange_device = _exchanging(devices, "_exchange_device")
    maybe_exchange_device = _exchanging(devices, "_maybe_exchange_device")
    functions: dict[str, Callable[..., Any]] = {
        "_cuda_init": _nothing,
        "_cuda_isInBadFork": lambda: False,
        "_cuda_hasPrimaryContext": lambda device: device == devices.own,
        "_cuda_getDeviceCount": lambda: devices.count,
        "_cuda_getDevice": lambda: devices.current,
        "_cuda_setDevice": devices.set,
        "_cuda_exchangeDevice": exchange_device,
        "_cuda_maybeExchangeDevice": maybe_exchange_device,
        "_cuda_canDeviceAccessPeer": devices.can_access_peer,
        "_cuda_ipc_collect": _nothing,
        "_accelerator_getAccelerator": lambda: torch.device("cuda"),
        "_get_accelerator": lambda check=False: torch.device("cuda"),
        "_accelerator_getDeviceIndex": lambda: devices.current,
        "_accelerator_setDeviceIndex": devices.set,
        "_accelerator_exchangeDevice": partial(devices.exchange),
        "_accelerator_maybeExchangeDevice": partial(devices.exchange),
    }
    cuda = torch.cuda
    return [
        *((torch._C, name, function) for name, function in functions.items()),
        (cuda, "_exchange_device", exchange_device),
        (cuda, "_maybe_exchange_device", maybe_exchange_device),
        (cuda, "_get_device_properties", lambda device: properties),
        (cuda, "_CudaDeviceProperties", DeviceProperties),
        (cuda, "_is_in_bad_fork", lambda: False),
        (cuda, "_device_count_nvml", lambda: -1),
        (cuda, "_cached_device_count", None),
        (cuda, "_initialized", True),
        *sensors(),
        *nvml(),
        *_build_of(torch_release),
    ]


def _exchanging(devices: Devices, name: str) -> Callable[[int], int]:
    """A function of `torch.cuda` as torch._dynamo needs it.

    It distinguishes functions by identity (`TorchInGraphFunctionVariable._get_handlers`), and
    writes them into graphs by their names (`CUDADeviceVariable`).
    """

    def exchange(device: int) -> int:
        return devices.exchange(device)

    exchange.__name__ = exchange.__qualname__ = name
    exchange.__module__ = "torch.cuda"
    return exchange


_OUT_OF_RANGE = "GPU device may be out of range, do you have enough GPUs?"
_ASYNCHRONOUS = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the "
    "stacktrace below might be incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1"
)
_ASSERTIONS = "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."


def _help() -> str:
    """`get_cuda_error_help`, `get_cuda_check_suffix` (c10/cuda/CUDAMiscFunctions.cpp)."""
    is_blocking = os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"
    lines = [_OUT_OF_RANGE, *([] if is_blocking else [_ASYNCHRONOUS]), _ASSERTIONS]
    return "\n".join(lines)


def _build_of(torch_release: tuple[int, int]) -> list[Replacement]:
    """CUDA's version and architectures, for a CPU build; a CUDA build keeps its own."""
    if torch.version.cuda is not None:
        return []
    _, version, kernels = next(each for each in _CUDA_OF_RELEASE if torch_release >= each[0])
    number = int(version.split(".")[0]) * 1000 + int(version.split(".")[1]) * 10
    return [
        (torch.version, "cuda", version),
        (torch._C, "_cuda_getArchFlags", lambda: kernels),
        (torch._C, "_cuda_getCompiledVersion", lambda: number),
        (torch._C, "_is_flash_attention_available", lambda: True),  # in every wheel for CUDA
    ]


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None
