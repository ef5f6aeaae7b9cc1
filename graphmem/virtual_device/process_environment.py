"""The environment variables that PyTorch reads, while a program may still set them.

A script may set `PYTORCH_CUDA_ALLOC_CONF` or `CUBLAS_WORKSPACE_CONFIG` in its first lines, and
PyTorch reads them when it needs them. So these are the process's variables at the time, with
`--env` overriding those set at the start. A `CUBLAS_WORKSPACE_CONFIG` that PyTorch cannot
parse is ignored with a warning (`parseChosenWorkspaceSize`,
aten/src/ATen/cuda/CublasHandlePool.cpp).
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Mapping

NAMES = (
    "CUBLASLT_WORKSPACE_SIZE",
    "CUBLAS_WORKSPACE_CONFIG",
    "DISABLE_ADDMM_CUDA_LT",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_CUBLASLT_UNIFIED_WORKSPACE",
    "TORCH_CUBLAS_WORKSPACE_CACHE",
)
"""The variables that graphmem models; it reads no others."""


_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


class ProcessEnvironment(Mapping[str, str]):
    """Variables by name, with their current values."""

    def __init__(self, asked_for: Mapping[str, str]) -> None:
        """Start from this process's variables; those asked for override them."""
        self._asked_for = dict(asked_for)
        self._at_first = {name: os.environ.get(name) for name in NAMES}

    def __getitem__(self, name: str) -> str:
        now = os.environ.get(name) if name in self._at_first else None
        if now == self._at_first.get(name) and name in self._asked_for:
            return self._asked_for[name]
        if now is None or (name == _CUBLAS and not _is_understood(now)):
            raise KeyError(name)
        return now

    def __iter__(self) -> Iterator[str]:
        names = dict.fromkeys((*self._asked_for, *NAMES))
        return (name for name in names if self.get(name) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _is_understood(config: str) -> bool:
    if re.fullmatch(r"(:\d+:\d+)+", config):
        return True
    warnings.warn(f"Could not parse {_CUBLAS}, using default workspace size", stacklevel=2)
    return False
