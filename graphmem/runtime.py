"""The machine of a prediction: GPU, PyTorch version, environment."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from graphmem.errors import InputError
from graphmem.gpus import Gpu
from graphmem.gpus.context import Context, context_of
from graphmem.gpus.nccl import nccl_of
from graphmem.torch_releases import differences, parse_release

if TYPE_CHECKING:
    from graphmem.allocator import AllocatorSettings, CachingAllocator

_KIB = 1024
_TRUE = frozenset({"1", "true", "yes", "on"})  # c10/util/env.cpp, `check_env`

_ALLOC_CONF = "PYTORCH_ALLOC_CONF"
_CUDA_ALLOC_CONF = "PYTORCH_CUDA_ALLOC_CONF"


class WrongBlasConfigError(InputError):
    """CUBLAS_WORKSPACE_CONFIG makes no sense."""

    def __init__(self, config: str) -> None:
        super().__init__(
            f"CUBLAS_WORKSPACE_CONFIG={config!r} is not a list of sizes",
            hint="write :KiB:count, such as :4096:8 or :16:8",
        )


class WrongBlasLtSizeError(InputError):
    """CUBLASLT_WORKSPACE_SIZE makes no sense."""

    def __init__(self, kib: str) -> None:
        super().__init__(f"CUBLASLT_WORKSPACE_SIZE={kib!r} is not a number", hint="it counts KiB")


class LtWorkspace(enum.Enum):
    """How long cublasLt keeps its workspace."""

    EACH_CALL = "each call"
    KEPT = "kept by each handle"
    SHARED = "none apart from that of cuBLAS"


@dataclass(frozen=True)
class Runtime:
    """The machine on which the step would run.

    Attributes:
        gpu: the card.
        torch: the version whose CUDA rules apply, such as "2.13.0".
        env: environment variables that PyTorch reads, such as CUBLAS_WORKSPACE_CONFIG.
        communicators: how many NCCL communicators the process has with other ranks.
    """

    gpu: Gpu
    torch: str
    env: Mapping[str, str] = field(default_factory=dict)
    communicators: int = 0

    @property
    def context(self) -> Context:
        """The memory that the process takes outside PyTorch's allocator."""
        return context_of(self.gpu.compute_capability) + nccl_of(self.communicators)

    @property
    def release(self) -> tuple[int, int]:
        """The version of PyTorch, such as (2, 13)."""
        return parse_release(self.torch)

    def is_set(self, name: str) -> bool:
        """Whether an environment variable is set to true."""
        return self.env.get(name, "").lower() in _TRUE

    @property
    def cublas_workspace_bytes(self) -> int:
        """Bytes of one cuBLAS workspace.

        `CUBLAS_WORKSPACE_CONFIG` is a list of `:KiB:count`, which are summed; without it the card
        and the version decide (`parseChosenWorkspaceSize` in
        aten/src/ATen/cuda/CublasHandlePool.cpp).

        Raises:
            InputError: the variable is not of that form.
        """
        config = self.env.get("CUBLAS_WORKSPACE_CONFIG")
        if config is None:
            return self.gpu.cublas_workspace_bytes(self.torch)
        before, *numbers = config.split(":")
        if before or not numbers or len(numbers) % 2 or not all(map(_is_number, numbers)):
            raise WrongBlasConfigError(config)
        sizes = map(int, numbers)
        return sum(kib * _KIB * count for kib, count in zip(sizes, sizes, strict=True))

    @property
    def keeps_cublas_workspaces(self) -> bool:
        """Whether a cuBLAS handle keeps its workspace, and not each call takes and returns one.

        aten/src/ATen/cuda/CublasHandlePool.cpp, `isCUDABlasWorkspaceCachingEnabled`.
        """
        are_returned = differences.WORKSPACES_ARE_RETURNED.holds_in(self.release)
        return not are_returned or self.is_set("TORCH_CUBLAS_WORKSPACE_CACHE")

    @property
    def cublaslt_workspace_bytes(self) -> int:
        """Bytes of cublasLt's workspace: 1 MiB, or `CUBLASLT_WORKSPACE_SIZE` in KiB.

        aten/src/ATen/cuda/CUDABlas.cpp, `_parseChosenWorkspaceSize`.

        Raises:
            InputError: the variable is not a number.
        """
        kib = self.env.get("CUBLASLT_WORKSPACE_SIZE", "1024")
        if not _is_number(kib):
            raise WrongBlasLtSizeError(kib)
        return int(kib) * _KIB

    @property
    def cublaslt_workspace(self) -> LtWorkspace:
        """How long cublasLt's workspace lives; `TORCH_CUBLASLT_UNIFIED_WORKSPACE` may share it."""
        if not self.keeps_cublas_workspaces:
            return LtWorkspace.EACH_CALL
        setting = "TORCH_CUBLASLT_UNIFIED_WORKSPACE"
        is_shared = differences.LT_WORKSPACE_IS_SHARED.holds_in(self.release)
        may_be_shared = differences.LT_WORKSPACE_MAY_BE_SHARED.holds_in(self.release)
        if setting in self.env and may_be_shared:
            is_shared = self.is_set(setting)
        if is_shared:
            return LtWorkspace.SHARED
        is_kept = differences.LT_WORKSPACE_IS_KEPT.holds_in(self.release)
        return LtWorkspace.KEPT if is_kept else LtWorkspace.EACH_CALL

    @property
    def allocator_conf(self) -> str | None:
        """The configuration string of the caching allocator, or None.

        `PYTORCH_CUDA_ALLOC_CONF`, or if it is not set `PYTORCH_ALLOC_CONF` (from torch 2.10 on).
        """
        text = self.env.get(_CUDA_ALLOC_CONF)
        if text is None and differences.ALLOC_CONF_IS_READ.holds_in(self.release):
            text = self.env.get(_ALLOC_CONF)
        return text

    @property
    def allocator_settings(self) -> AllocatorSettings:
        """The caching allocator's settings in the environment.

        Raises:
            InputError: PyTorch would reject them, or they select a different allocator.
        """
        from graphmem.allocator import parse_settings

        return parse_settings(self.allocator_conf or "", self.release)

    def new_allocator(
        self, *, bounded: bool = True, context_bytes: int | None = None
    ) -> CachingAllocator:
        """Make an empty caching allocator for this card, as PyTorch starts it in this environment.

        Args:
            bounded: whether the card can be full: PyTorch can have its memory minus the context. If
                false, memory is unlimited.
            context_bytes: the size of the context; by default the estimate of `context`.

        Raises:
            InputError: as for `allocator_settings`.
        """
        from graphmem.allocator import CachingAllocator, Device
        from graphmem.allocator.addresses import DEFAULT_DRIVER

        driver = self.gpu.driver or DEFAULT_DRIVER
        context = self.context.estimate_bytes if context_bytes is None else context_bytes
        room = self.gpu.memory_bytes - context if bounded else None
        device = Device(room, context if bounded else 0, driver)
        return CachingAllocator(self.allocator_settings, device=device, release=self.release)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
