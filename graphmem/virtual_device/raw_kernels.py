"""Kernels that a program writes in CUDA C++ and compiles itself (`torch.cuda._compile_kernel`).

PyTorch's own Python checks the arguments and launches (torch/cuda/_utils.py, `_CudaKernel`).
Nothing is compiled, and the driver's functions succeed without doing anything: the memory of such a
kernel is that of its arguments, whose values are unknown afterwards.

A kernel for each element (`torch.cuda.jiterator`, as flash-attn's SwiGLU) is an operation of
PyTorch, whose `TensorIterator` allocates its results in the operands' common type and layout
(`CompileAndLaunchKernel`, aten/src/ATen/native/cuda/jiterator.cu).

Not covered: errors in the kernel's source.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import torch
from torch._prims_common import (
    ELEMENTWISE_TYPE_PROMOTION_KIND,
    compute_elementwise_output_strides,
    elementwise_dtypes,
)
from torch.cuda import _utils

from graphmem.virtual_device.patching import Replacement
from graphmem.virtual_device.unseen_writes import forget

_COMMON = ELEMENTWISE_TYPE_PROMOTION_KIND.NO_OPMATH


class _Driver:
    """The driver's library; each of its functions returns `CUDA_SUCCESS`."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return _succeed


def _succeed(*args: Any) -> int:
    return 0


def _compile_nothing(source: str, name: str, *args: Any, **options: Any) -> tuple[bytes, str]:
    """The code of a kernel and its mangled name, as `_nvrtc_compile` returns them."""
    return b"", name


def _launch_for_each(
    code: str,
    name: str,
    by_reference: bool,
    count: int,
    tensors: Sequence[torch.Tensor],
    options: Mapping[str, Any],
) -> Any:
    """`_cuda_jiterator_compile_and_launch_kernel`."""
    operands = torch.broadcast_tensors(*tensors)
    like, strides = operands[0], compute_elementwise_output_strides(*operands)
    _, dtype = elementwise_dtypes(*tensors, type_promotion_kind=_COMMON)
    made = [like.new_empty_strided(like.shape, strides, dtype=dtype) for _ in range(count)]
    return tuple(made) if count > 1 else made[0]


def raw_kernel_replacements() -> list[Replacement]:
    """List what compiling and launching a kernel replaces."""
    for_each = (torch._C, "_cuda_jiterator_compile_and_launch_kernel", _launch_for_each)
    return [for_each, *(_compiled_by_nvrtc() if hasattr(_utils, "_CudaKernel") else [])]


def _compiled_by_nvrtc() -> list[Replacement]:
    """Of `torch.cuda._compile_kernel`, which torch has since 2.8."""
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
