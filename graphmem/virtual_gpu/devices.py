"""Which devices there are: one, and asking for another is the error that a card's driver gives.

The functions of torch/csrc/cuda/Module.cpp and torch/csrc/DeviceAccelerator.cpp on which
torch/cuda/__init__.py and torch/accelerator/__init__.py stand.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from graphmem.gpus import Gpu
from graphmem.virtual_gpu.device_properties import DeviceProperties
from graphmem.virtual_gpu.patching import Replacement

_DEVICE = 0

# The CUDA that the wheel of a release on PyPI is built with, and what it has kernels for: read in
# the wheel of 2.13.0, else RELEASE.md and .ci/manywheel/build_cuda.sh of the releases.
_CUDA_OF_RELEASE: tuple[tuple[tuple[int, int], str, str], ...] = (
    ((2, 11), "13.0", "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"),
    ((2, 9), "12.8", "sm_70 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120"),
    ((2, 8), "12.8", "sm_70 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120"),
    ((2, 7), "12.6", "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90"),
    ((2, 5), "12.4", "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90"),
    ((0, 0), "12.1", "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90"),
)


def device_replacements(gpu: Gpu, torch_release: tuple[int, int]) -> list[Replacement]:
    """The functions about devices to replace."""
    properties = DeviceProperties(gpu)
    functions: dict[str, Callable[..., Any]] = {
        "_cuda_init": _nothing,
        "_cuda_isInBadFork": lambda: False,
        "_cuda_hasPrimaryContext": lambda device: device == _DEVICE,
        "_cuda_getDeviceCount": lambda: 1,
        "_cuda_getDevice": lambda: _DEVICE,
        "_cuda_setDevice": check_device,
        "_cuda_exchangeDevice": _exchange_device,
        "_cuda_maybeExchangeDevice": _maybe_exchange_device,
        "_cuda_canDeviceAccessPeer": _can_access_peer,
        "_cuda_ipc_collect": _nothing,
        "_accelerator_getAccelerator": lambda: torch.device("cuda"),
        "_get_accelerator": lambda check=False: torch.device("cuda"),
        "_accelerator_getDeviceIndex": lambda: _DEVICE,
        "_accelerator_setDeviceIndex": check_device,
        "_accelerator_exchangeDevice": _exchange_index,
        "_accelerator_maybeExchangeDevice": _maybe_exchange_index,
    }
    cuda = torch.cuda
    return [
        *((torch._C, name, function) for name, function in functions.items()),
        (cuda, "_exchange_device", _exchange_device),
        (cuda, "_maybe_exchange_device", _maybe_exchange_device),
        (cuda, "_get_device_properties", lambda device: properties),
        (cuda, "_CudaDeviceProperties", DeviceProperties),
        (cuda, "_is_in_bad_fork", lambda: False),
        (cuda, "_device_count_nvml", lambda: -1),
        (cuda, "_cached_device_count", None),
        (cuda, "_initialized", True),
        *_build_of(torch_release),
    ]


def check_device(index: int) -> None:
    """`cudaSetDevice`.

    Raises:
        torch.AcceleratorError: there is no such device.
    """
    if index > _DEVICE:
        raise torch.AcceleratorError(f"CUDA error: invalid device ordinal\n{_help()}\n")


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


def _exchange(index: int) -> int:
    if index < 0:
        return -1
    check_device(index)
    return _DEVICE


# torch._dynamo tells functions apart by identity (`TorchInGraphFunctionVariable._get_handlers`).
_exchange_device = partial(_exchange)
_maybe_exchange_device = partial(_exchange)
_exchange_index = partial(_exchange)
_maybe_exchange_index = partial(_exchange)


def _can_access_peer(device: int, peer: int) -> bool:
    """A device is no peer of itself; errors are those of `get_p2p_access`."""
    for index in (device, peer):
        check_device(index)
    return False


def _build_of(torch_release: tuple[int, int]) -> list[Replacement]:
    """What a CPU build lacks; a CUDA build tells its own."""
    if torch.version.cuda is not None:
        return []
    _, version, kernels = next(each for each in _CUDA_OF_RELEASE if torch_release >= each[0])
    number = int(version.split(".")[0]) * 1000 + int(version.split(".")[1]) * 10
    return [
        (torch.version, "cuda", version),
        (torch._C, "_cuda_getArchFlags", lambda: kernels),
        (torch._C, "_cuda_getCompiledVersion", lambda: number),
    ]


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None
