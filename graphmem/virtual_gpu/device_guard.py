"""Give a PyTorch without CUDA the no-op CUDA device guard that fake CUDA tensors need.

Autograd's `InputMetadata` asks for the device guard of every tensor's device, and a CPU build has
none for CUDA. PyTorch has its own no-op guard for machines without a card and installs it in
`torch._C._ensureCUDADeviceGuardSet()` where a CUDA guard is registered that counts no device
(c10/core/impl/DeviceGuardImplInterface.h, `ensureCUDADeviceGuardSet`). A CUDA build registers such
a guard by itself; for a CPU build this file registers one: an object whose every virtual function
answers 0, which PyTorch replaces at once by its own.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import torch

from graphmem.errors import InputError

_CUDA_SLOT = 1  # c10::DeviceType::CUDA, the index into device_guard_impl_registry
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_VTABLE_ENTRIES = 64

_keep_alive: list[object] = []


def ensure_cuda_device_guard() -> None:
    """Install PyTorch's no-op CUDA device guard, once in a process.

    Raises:
        InputError: libc10 cannot be found or does not export its registry of device guards.
    """
    if not _slot().value:
        _register_guard_without_devices()
    torch._C._ensureCUDADeviceGuardSet()


def _slot() -> ctypes.c_void_p:
    library = Path(torch.__file__).parent / "lib" / _library_name()
    try:
        registry = (ctypes.c_void_p * (_CUDA_SLOT + 1)).in_dll(ctypes.CDLL(str(library)), _REGISTRY)
    except (OSError, ValueError) as error:
        raise InputError(
            f"this build of PyTorch ({torch.__version__}) does not let graphmem stand in for a GPU",
            hint="install a released wheel, such as `pip install torch==2.13.0`",
        ) from error
    return ctypes.c_void_p.from_buffer(registry, _CUDA_SLOT * ctypes.sizeof(ctypes.c_void_p))


def _library_name() -> str:
    return {"darwin": "libc10.dylib", "win32": "c10.dll"}.get(sys.platform, "libc10.so")


def _register_guard_without_devices() -> None:
    answer_zero = ctypes.CFUNCTYPE(ctypes.c_size_t)(lambda: 0)
    address = ctypes.cast(answer_zero, ctypes.c_void_p).value
    vtable = (ctypes.c_void_p * _VTABLE_ENTRIES)(*[address] * _VTABLE_ENTRIES)
    guard = (ctypes.c_void_p * 1)(ctypes.addressof(vtable))
    _keep_alive.extend([answer_zero, vtable, guard])
    _slot().value = ctypes.addressof(guard)
