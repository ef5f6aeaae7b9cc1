"""torch's interface to the libraries around the driver: CUDA runtime, cuBLAS, cuDNN, NVTX.

Handles are addresses. Asking for cuBLAS's handle creates it, with its workspace.
NVTX ranges are counted and otherwise ignored. Pluggable allocators, and in a trace CUDA graphs and
memory pools, are refused: what they do with memory is not modelled.

Not covered: NCCL's own functions (`torch.cuda.nccl`), which scripts no longer call.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.cuda.graphs
import torch.cuda.nvtx

from graphmem.errors import InputError
from graphmem.virtual_device.device_memory import DeviceMemory
from graphmem.virtual_device.patching import Replacement
from graphmem.virtual_device.pinned_memory import PinnedMemory
from graphmem.virtual_device.raw_kernels import raw_kernel_replacements

_BLAS_HANDLE, _SOLVER_HANDLE = 0x6_0000_0000, 0x6_0000_1000
_BENCHMARK_LIMIT = 10  # at::Context::benchmark_limit_cudnn
_ERRORS = {0: "no error", 1: "invalid argument", 2: "out of memory", 101: "invalid device ordinal"}


class CudaError(enum.IntEnum):
    """`cudaError` (torch/csrc/cuda/shared/cudart.cpp); other codes are numbers only."""

    success = 0

    @classmethod
    def _missing_(cls, value: object) -> CudaError:
        member = int.__new__(cls, value)  # type: ignore[call-overload]
        member._name_, member._value_ = f"error {value}", value
        return member  # type: ignore[no-any-return]


class CudaRuntime:
    """The module `torch.cuda.cudart()`."""

    cudaError = CudaError  # noqa: N815 - names of this class are CUDA's

    def __init__(self, memory_info: Callable[[int], tuple[int, int]], pinned: PinnedMemory) -> None:
        self.cudaMemGetInfo = memory_info
        self.cudaHostRegister = pinned.register
        self.cudaHostUnregister = pinned.unregister

    @staticmethod
    def cudaGetErrorString(error: int) -> str:  # noqa: N802
        """The meaning of an error code."""
        return _ERRORS.get(int(error), f"CUDA error {int(error)}")

    @staticmethod
    def cudaProfilerStart() -> CudaError:  # noqa: N802
        """Do nothing: there is no profiler."""
        return CudaError.success

    cudaProfilerStop = cudaProfilerStart  # noqa: N815

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"the virtual GPU's CUDA runtime has no {name!r}")


class Nvtx:
    """The functions behind `torch.cuda.nvtx`: they return the depth or the number of a range."""

    def __init__(self) -> None:
        self._depth = 0
        self._numbers = itertools.count(1)

    def rangePushA(self, message: str) -> int:  # noqa: N802
        """Open a range and return its depth."""
        self._depth += 1
        return self._depth - 1

    def rangePop(self) -> int:  # noqa: N802
        """Close a range and return its depth; negative if none is open."""
        self._depth = max(-1, self._depth - 1)
        return self._depth

    def rangeStartA(self, message: str, *stream: int) -> int:  # noqa: N802
        """Return the number of a new range."""
        return next(self._numbers)

    def rangeEnd(self, number: int, *stream: int) -> None:  # noqa: N802
        """Do nothing."""

    deviceRangeStart, deviceRangeEnd = rangeStartA, rangeEnd  # noqa: N815

    def markA(self, message: str) -> None:  # noqa: N802
        """Do nothing."""


class _Settings:
    """Settings that libraries store and return."""

    def __init__(self, workspace_bytes: int) -> None:
        self._values = {
            "cudnn_benchmark_limit": _BENCHMARK_LIMIT,
            "sync_debug_mode": 0,
            "CublasWorkspaceSize": workspace_bytes,
        }

    def functions(self) -> dict[str, Callable[..., Any]]:
        """The functions that get and set them."""
        return {
            "_cuda_get_cudnn_benchmark_limit": self._get("cudnn_benchmark_limit"),
            "_cuda_set_cudnn_benchmark_limit": self._set("cudnn_benchmark_limit"),
            "_cuda_get_sync_debug_mode": self._get("sync_debug_mode"),
            "_cuda_set_sync_debug_mode": self._set("sync_debug_mode"),
            "_cuda_getCublasWorkspaceSize": self._get("CublasWorkspaceSize"),
        }

    def _get(self, name: str) -> Callable[[], int]:
        return lambda: self._values[name]

    def _set(self, name: str) -> Callable[[int], None]:
        return lambda value: self._values.__setitem__(name, value)


def library_replacements(
    memory: DeviceMemory, memory_info: Callable[[int], tuple[int, int]], pinned: PinnedMemory
) -> list[Replacement]:
    """List the replacements of library functions.

    Args:
        memory: the device's memory.
        memory_info: free and total bytes of a device.
        pinned: knows which host memory is page-locked.
    """

    def blas_handle() -> int:
        memory.run.take_blas_workspace()
        return _BLAS_HANDLE

    def clear_blas_workspaces() -> None:
        memory.run.clear_blas_workspaces()

    runtime = CudaRuntime(memory_info, pinned)
    functions: dict[str, Callable[..., Any]] = {
        "_cuda_getCurrentBlasHandle": blas_handle,
        "_cuda_clearCublasWorkspaces": clear_blas_workspaces,
        "_cuda_resetCublasWorkspaceSize": _nothing,
        "_cuda_resetCublasLtWorkspaceSize": _nothing,
        "_cuda_setCublasWorkspaceSize": _refusing("a cuBLAS workspace of another size"),
        "_cuda_setCublasLtWorkspaceSize": _refusing("a cuBLASLt workspace of another size"),
        "_cuda_getCurrentSolverHandle": lambda: _SOLVER_HANDLE,
        **_Settings(memory.gpu.cublas_workspace_bytes(torch.__version__)).functions(),
        "_cuda_customAllocator": _refusing("a custom allocator"),
        "_cuda_changeCurrentAllocator": _refusing("a custom allocator"),
    }
    return [
        *((torch._C, name, function) for name, function in functions.items()),
        (torch._C, "_cudart", runtime),
        (torch.cuda, "_cudart", runtime),
        (torch.cuda.nvtx, "_nvtx", Nvtx()),
        *raw_kernel_replacements(),
    ]


def refused_pools() -> list[Replacement]:
    """Make graphs and pools errors in a trace whose memory is simulated only afterwards."""
    no_graphs = _only_run("a CUDA graph")

    def is_current_stream_capturing() -> bool:
        return False

    return [
        # Optimizers call it (`_accelerator_graph_capture_health_check`).
        (torch.cuda, "is_current_stream_capturing", is_current_stream_capturing),
        (torch.cuda.graphs, "is_current_stream_capturing", is_current_stream_capturing),
        (torch.cuda.graphs.CUDAGraph, "__new__", staticmethod(no_graphs)),
        (torch.cuda, "graph_pool_handle", no_graphs),
        (torch.cuda.graphs, "graph_pool_handle", no_graphs),
        (torch.cuda.MemPool, "__new__", staticmethod(_only_run("a memory pool"))),
    ]


def _nothing() -> None:
    return None


def _refusing(what: str) -> Callable[..., NoReturn]:
    return _error(
        f"the virtual GPU does not model what {what} does with memory", "leave it out of the run"
    )


def _only_run(what: str) -> Callable[..., NoReturn]:
    return _error(
        f"the step uses {what}, whose memory this command does not follow",
        "`graphmem analyze` and `graphmem run` do",
    )


def _error(message: str, hint: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise InputError(message, hint=hint)

    return refuse
