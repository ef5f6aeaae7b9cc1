"""NVIDIA's management library, of which programs ask how full the card is (`pynvml`).

pynvml (nvidia-ml-py, also within gpustat, accelerate and codecarbon) is Python over
`libnvidia-ml.so.1`, which it loads by `ctypes.CDLL`. In its place is a library of Python functions
that answer as `torch.cuda` does: names, memory, the process itself, and sensors, which read 0
(`sensors`). All others return NVML_ERROR_NOT_SUPPORTED, as for what a card does not report.

Not covered: other processes than the program's, and libraries in C that load it themselves.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from graphmem.virtual_device.patching import Replacement

_LIBRARY = "libnvidia-ml.so"
_SUCCESS, _UNINITIALIZED, _INVALID, _NOT_SUPPORTED = range(4)
_INSUFFICIENT_SIZE = 7
_MEANINGS = {
    _SUCCESS: b"Success",
    _UNINITIALIZED: b"Uninitialized",
    _INVALID: b"Invalid Argument",
    _NOT_SUPPORTED: b"Not Supported",
    _INSUFFICIENT_SIZE: b"Insufficient Size",
}
_DRIVER = b"580.159.04"
"""The driver of this project's recordings."""

Function = Callable[..., Any]


def nvml() -> list[Replacement]:
    """List what to replace, so that the library is found."""
    load = ctypes.CDLL.__init__

    def load_or_stand_in(library: Any, name: Any = None, *args: Any, **kwargs: Any) -> None:
        if not (isinstance(name, str) and Path(name).name.startswith(_LIBRARY)):
            load(library, name, *args, **kwargs)
            return
        library._name, library._handle = name, 0
        library._FuncPtr = lambda named: _function(named[0], is_there)

    def is_there() -> bool:
        return ctypes.CDLL.__init__ is load_or_stand_in

    return [(ctypes.CDLL, "__init__", load_or_stand_in)]


def _function(name: str, is_there: Callable[[], bool]) -> Function:
    """A function of the library by its name, whose newest versions end in `_v2` or `_v3`."""
    answer = _FUNCTIONS.get(name) or _FUNCTIONS.get(name.rpartition("_v")[0], _not_supported)

    def call(*args: Any) -> Any:
        if answer is _meaning:
            return answer(*args)
        return answer(*map(_value_of, args)) if is_there() else _UNINITIALIZED

    return call


def _value_of(argument: Any) -> Any:
    """What `byref` refers to, or the argument."""
    return getattr(argument, "_obj", argument)


def _not_supported(*args: Any) -> int:
    return _NOT_SUPPORTED


def _done(*args: Any) -> int:
    return _SUCCESS


def _meaning(code: int) -> bytes:
    return _MEANINGS.get(int(code), b"Unknown Error")


def _count(found: Any) -> int:
    found.value = torch.cuda.device_count()
    return _SUCCESS


def _handle(index: Any, found: Any) -> int:
    """Handles are pointers, here numbers from 1."""
    number = int(getattr(index, "value", index))
    if not 0 <= number < torch.cuda.device_count():
        return _INVALID
    ctypes.c_void_p.from_address(ctypes.addressof(found)).value = number + 1
    return _SUCCESS


def _handle_by_uuid(uuid: Any, found: Any) -> int:
    text = getattr(uuid, "value", uuid)
    uuids = [_uuid_of(number) for number in range(torch.cuda.device_count())]
    return _handle(uuids.index(text), found) if text in uuids else _INVALID


def _number(handle: Any) -> int:
    return (ctypes.cast(handle, ctypes.c_void_p).value or 1) - 1


def _uuid_of(number: int) -> bytes:
    return f"GPU-{torch.cuda.get_device_properties(number).uuid}".encode()


def _memory(handle: Any, found: Any) -> int:
    found.free, found.total = torch.cuda.mem_get_info(_number(handle))
    found.used = found.total - found.free
    return _SUCCESS


def _processes(handle: Any, count: Any, found: Any) -> int:
    """The program alone; the first call asks how many there are."""
    if found is None or not count.value:
        count.value = 1
        return _INSUFFICIENT_SIZE
    count.value, found[0].pid = 1, os.getpid()
    free, total = torch.cuda.mem_get_info(_number(handle))
    found[0].usedGpuMemory = total - free
    return _SUCCESS


def _capability(handle: Any, major: Any, minor: Any) -> int:
    major.value, minor.value = torch.cuda.get_device_capability(_number(handle))
    return _SUCCESS


def _index(handle: Any, found: Any) -> int:
    found.value = _number(handle)
    return _SUCCESS


def _name(handle: Any, text: Any, size: Any) -> int:
    text.value = torch.cuda.get_device_name(_number(handle)).encode()
    return _SUCCESS


def _uuid(handle: Any, text: Any, size: Any) -> int:
    text.value = _uuid_of(_number(handle))
    return _SUCCESS


def _driver_version(text: Any, size: Any) -> int:
    text.value = _DRIVER
    return _SUCCESS


def _cuda_version(found: Any) -> int:
    major, minor = (torch.version.cuda or "13.0").split(".")[:2]
    found.value = 1000 * int(major) + 10 * int(minor)
    return _SUCCESS


def _rates(handle: Any, found: Any) -> int:
    found.gpu = found.memory = 0
    return _SUCCESS


def _zero(*args: Any) -> int:
    args[-1].value = 0
    return _SUCCESS


_FUNCTIONS: dict[str, Function] = {
    "nvmlErrorString": _meaning,
    **dict.fromkeys(("nvmlInit", "nvmlInitWithFlags", "nvmlShutdown"), _done),
    "nvmlDeviceGetCount": _count,
    "nvmlDeviceGetHandleByIndex": _handle,
    "nvmlDeviceGetHandleByUUID": _handle_by_uuid,
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetComputeRunningProcesses": _processes,
    "nvmlDeviceGetCudaComputeCapability": _capability,
    "nvmlDeviceGetIndex": _index,
    "nvmlDeviceGetMinorNumber": _index,
    "nvmlDeviceGetName": _name,
    "nvmlDeviceGetUUID": _uuid,
    "nvmlSystemGetDriverVersion": _driver_version,
    "nvmlSystemGetCudaDriverVersion": _cuda_version,
    "nvmlDeviceGetUtilizationRates": _rates,
    "nvmlDeviceGetTemperature": _zero,
    "nvmlDeviceGetPowerUsage": _zero,
    "nvmlDeviceGetTotalEnergyConsumption": _zero,
    "nvmlDeviceGetClockInfo": _zero,
}
