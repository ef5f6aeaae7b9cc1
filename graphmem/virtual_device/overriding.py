"""Register a kernel in place of one that PyTorch registered from Python."""

from __future__ import annotations

from typing import Any

import torch

from graphmem.torch_releases import installed_release
from graphmem.torch_releases.installed_build import KERNELS_MAY_BE_OVERRIDDEN


def override(library: torch.library.Library, name: str, kernel: Any, key: str) -> None:
    """`library.impl(name, kernel, key, allow_override=True)`.

    Before torch 2.8 the list of what is registered is all that forbids it.
    """
    if KERNELS_MAY_BE_OVERRIDDEN.holds_in(installed_release()):
        library.impl(name, kernel, key, allow_override=True)
        return
    torch.library._impls.discard(f"{library.ns}/{name}/{key}")
    library.impl(name, kernel, key)
