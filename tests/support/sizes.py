"""Sizes in bytes that several tests derive their figures from."""

from __future__ import annotations

from graphmem.torch_releases import installed_release
from graphmem.torch_releases.differences import LT_WORKSPACE_IS_SHARED

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

CUBLAS_WORKSPACE = 4096 * 2 * 1024 + 16 * 8 * 1024
"""Of cards other than Hopper and Blackwell; docs/sources.md, "cuBLAS workspaces"."""

LT_WORKSPACE = 0 if LT_WORKSPACE_IS_SHARED.holds_in(installed_release()) else MIB
"""What cublasLt has besides; a linear layer with a bias in a forward pass uses it."""


def in_blocks(nbytes: int) -> int:
    """Allocated bytes of a request: the caching allocator rounds up to 512."""
    return -(-nbytes // 512) * 512
