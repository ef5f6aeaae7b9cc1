"""The assumptions that a report lists because of the releases it was made with."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from graphmem.graph import Assumption
from graphmem.torch_releases import installed_release, parse_release
from graphmem.torch_releases.differences import NEWEST_TRIED
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
    if parse_release(version) != installed_release():
        yield Assumption(
            f"what torch {version} runs above the card's kernels",
            f"composites, derivative formulas and optimizers of {installed}",
            "it is the one that is installed; --torch chooses the CUDA rules",
            None,
        )
