"""Sizes in bytes that several tests derive their figures from."""

from __future__ import annotations

from graphmem.torch_releases import installed_release
from graphmem.torch_releases.differences import LT_WORKSPACE_IS_SHARED, WORKSPACES_ARE_RETURNED

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_RETURNS_WORKSPACES = WORKSPACES_ARE_RETURNED.holds_in(installed_release())

CUBLAS_WORKSPACE = 0 if _RETURNS_WORKSPACES else 4096 * 2 * 1024 + 16 * 8 * 1024
"""What a cuBLAS handle keeps on cards other than Hopper and Blackwell; docs/sources.md."""

HOPPER_WORKSPACE = 0 if _RETURNS_WORKSPACES else 32 * MIB
"""What a cuBLAS handle keeps on Hopper."""

LT_WORKSPACE = 0 if LT_WORKSPACE_IS_SHARED.holds_in(installed_release()) else MIB
"""What cublasLt keeps besides; a linear layer with a bias in a forward pass uses it."""


KEPT_WORKSPACES = {"TORCH_CUBLAS_WORKSPACE_CACHE": "1"}
"""The environment in which torch 2.15 keeps cuBLAS's workspaces, as earlier releases do."""


def in_blocks(nbytes: int) -> int:
    """Allocated bytes of a request: the caching allocator rounds up to 512."""
    return -(-nbytes // 512) * 512
