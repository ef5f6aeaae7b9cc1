"""Kernels that a program writes in CUDA C++ and compiles itself (`torch.cuda._compile_kernel`).

PyTorch's own Python checks the arguments and launches (torch/cuda/_utils.py, `_CudaKernel`).
Nothing is compiled, and the driver's functions succeed without doing anything: the memory of such a
kernel is that of its arguments, whose values are unknown afterwards.

Not covered: errors in the kernel's source.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from torch.cuda import _utils

from graphmem.virtual_device.patching import Replacement
from graphmem.virtual_device.unseen_writes import forget


class _Driver:
    """The driver's library; each of its functions returns `CUDA_SUCCESS`."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return _succeed


def _succeed(*args: Any) -> int:
    return 0


def _compile_nothing(source: str, name: str, *args: Any, **options: Any) -> tuple[bytes, str]:
    """The code of a kernel and its mangled name, as `_nvrtc_compile` returns them."""
    return b"", name


def raw_kernel_replacements() -> list[Replacement]:
    """List what compiling and launching a kernel replaces."""
    driver = _Driver()
    launch = _utils._CudaKernel.__call__
    signature = inspect.signature(launch)

    @wraps(launch)
    def launch_and_forget(*given: Any, **named: Any) -> None:
        launch(*given, **named)
        forget(signature.bind(*given, **named).arguments.get("args") or ())

    return [
        (_utils._CudaKernel, "__call__", launch_and_forget),
        (_utils, "_nvrtc_compile", _compile_nothing),
        (_utils, "_get_cuda_library", lambda: driver),
    ]
