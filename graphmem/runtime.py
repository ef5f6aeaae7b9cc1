"""The machine that a prediction is for: GPU, PyTorch version, environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from graphmem.errors import InputError
from graphmem.gpus import Gpu

_KIB = 1024


@dataclass(frozen=True)
class Runtime:
    """Where the step would run.

    Attributes:
        gpu: the card.
        torch: the version whose CUDA rules apply, such as "2.13.0".
        env: environment variables that PyTorch reads, such as CUBLAS_WORKSPACE_CONFIG.
    """

    gpu: Gpu
    torch: str
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def cublas_workspace_bytes(self) -> int:
        """Bytes of one cuBLAS workspace.

        `CUBLAS_WORKSPACE_CONFIG` is a list of `:KiB:count` (aten/src/ATen/cuda/CublasHandlePool.cpp,
        `parseChosenWorkspaceSize`); without it the card and the version decide.

        Raises:
            InputError: the variable is not of that form.
        """
        config = self.env.get("CUBLAS_WORKSPACE_CONFIG")
        if config is None:
            return self.gpu.cublas_workspace_bytes(self.torch)
        numbers = config.split(":")[1:]
        if not numbers or len(numbers) % 2 or not all(number.isdigit() for number in numbers):
            raise InputError(
                f"CUBLAS_WORKSPACE_CONFIG={config!r} is not a list of sizes",
                hint="write :KiB:count, such as :4096:8 or :16:8",
            )
        sizes = map(int, numbers)
        return sum(kib * _KIB * count for kib, count in zip(sizes, sizes, strict=True))
