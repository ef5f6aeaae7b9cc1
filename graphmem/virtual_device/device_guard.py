"""Give a PyTorch without CUDA the no-op CUDA device guard that fake CUDA tensors need.

Autograd's `InputMetadata` asks for the device guard of every tensor's device, and a CPU build has
none for CUDA. PyTorch has its own no-op guard for machines without a card and installs it in
`torch._C._ensureCUDADeviceGuardSet()` if a CUDA guard is registered that counts no devices
(c10/core/impl/DeviceGuardImplInterface.h, `ensureCUDADeviceGuardSet`). A CUDA build registers such
a guard itself; for a CPU build this file registers one: an object whose virtual functions all
return 0, which PyTorch immediately replaces with its own.

PyTorch 2.9 has the no-op guard for meta tensors only (aten/src/ATen/detail/MetaGuardImpl.cpp:
`NoOpDeviceGuardImpl<DeviceType::Meta>`), which then stands in for CUDA's. It differs from the later
one only in the device type it reports, so nobody may ask it for the current device (`is_borrowed`).
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path

import torch

from graphmem.torch_releases import NO_OP_CUDA_GUARD, installed_release
from graphmem.virtual_device.messages import NoDeviceGuardError
from graphmem.virtual_device.patching import original_of

_CUDA_SLOT, _META_SLOT = 1, 14  # c10::DeviceType, the index into device_guard_impl_registry
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_VTABLE_ENTRIES = 64

_keep_alive: list[object] = []


@cache
def is_borrowed() -> bool:
    """Whether meta tensors' guard stands in for CUDA's; it reports a meta device as the current."""
    return not NO_OP_CUDA_GUARD.holds_in(installed_release())


def ensure_cuda_device_guard() -> None:
    """Install PyTorch's no-op CUDA device guard, once per process.

    Raises:
        InputError: libc10 cannot be found or does not export its registry of device guards.
    """
    if is_borrowed():
        _borrow_guard_of_meta_tensors()
        return
    if not _slot(_CUDA_SLOT).value:
        _slot(_CUDA_SLOT).value = _without_devices()
    torch._C._ensureCUDADeviceGuardSet()


def _borrow_guard_of_meta_tensors() -> None:
    count = getattr(torch._C, "_cuda_getDeviceCount", None)
    if count is None or not count():
        _slot(_CUDA_SLOT).value = _slot(_META_SLOT).value


class HiddenDevices:
    """Lets the guard count no devices until they are shown again.

    Before autograd's engine begins, it asks a CUDA build which of the guard's devices have a
    context (`GraphTask::stash_current_streams`, torch/csrc/autograd/engine.cpp), which fails on a
    machine without a card (`_hasPrimaryContext`, aten/src/ATen/cuda/detail/CUDAHooks.cpp).
    """

    def __init__(self) -> None:
        """Hide them, unless nobody will ask."""
        count = original_of(getattr(torch._C, "_cuda_getDeviceCount", None))
        self._slot = None if count is None or count() else _slot(_CUDA_SLOT)
        if self._slot is not None:
            self._guard = self._slot.value
            self._slot.value = _without_devices()

    def show(self) -> None:
        """Show them; not only once."""
        if self._slot is not None:
            self._slot.value = self._guard


def _slot(device_type: int) -> ctypes.c_void_p:
    library = Path(torch.__file__).parent / "lib" / _library_name()
    try:
        registry = (ctypes.c_void_p * (_META_SLOT + 1)).in_dll(ctypes.CDLL(str(library)), _REGISTRY)
    except (OSError, ValueError) as error:
        raise NoDeviceGuardError(torch.__version__) from error
    return ctypes.c_void_p.from_buffer(registry, device_type * ctypes.sizeof(ctypes.c_void_p))


def _library_name() -> str:
    return {"darwin": "libc10.dylib", "win32": "c10.dll"}.get(sys.platform, "libc10.so")


@cache
def _without_devices() -> int:
    """The address of a guard that counts none."""
    answer_zero = ctypes.CFUNCTYPE(ctypes.c_size_t)(lambda: 0)
    address = ctypes.cast(answer_zero, ctypes.c_void_p).value
    vtable = (ctypes.c_void_p * _VTABLE_ENTRIES)(*[address] * _VTABLE_ENTRIES)
    guard = (ctypes.c_void_p * 1)(ctypes.addressof(vtable))
    _keep_alive.extend([answer_zero, vtable, guard])
    return ctypes.addressof(guard)
