"""The assumptions that a report lists because of the releases it was made with."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from graphmem.graph import Assumption
from graphmem.torch_releases import installed_release, parse_release
from graphmem.torch_releases.differences import NEWEST_TRIED, WORKSPACES_ARE_RETURNED
from graphmem.torch_releases.manifest import written


def assumed_of(version: str) -> Iterator[Assumption]:
    """List what is assumed because of the installed release.

    Args:
        version: the version of torch whose CUDA rules apply.
    """
    installed = torch.__version__.partition("+")[0]
    if installed_release() > NEWEST_TRIED:
        yield Assumption(
            f"rules of torch {installed}",
            f"those of {written(NEWEST_TRIED)}",
            "it is newer than what graphmem was tried on",
            None,
        )
    if WORKSPACES_ARE_RETURNED.holds_in(parse_release(version)):
        yield Assumption(
            "workspaces of cuBLAS and cublasLt",
            "kept after a call, as up to torch 2.14",
            "torch 2.15 takes one for each call and returns it, unless "
            "TORCH_CUBLAS_WORKSPACE_CACHE=1; that is not followed yet, and the figures may differ "
            "by the workspaces' sizes",
            None,
        )
    if parse_release(version) != installed_release():
        yield Assumption(
            f"what torch {version} runs above the card's kernels",
            f"composites, derivative formulas and optimizers of {installed}",
            "it is the one that is installed; --torch chooses the CUDA rules",
            None,
        )
