"""The list of PyTorch names that graphmem uses, and which of them the installed one lacks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

import torch

from graphmem.errors import InputError, InternalError
from graphmem.torch_releases.compiler_names import COMPILER_NAMES
from graphmem.torch_releases.cuda_names import CUDA_NAMES
from graphmem.torch_releases.differences import NEWEST_TRIED, OLDEST, Release
from graphmem.torch_releases.inner_names import INNER_NAMES
from graphmem.torch_releases.names import Names, owner_at
from graphmem.torch_releases.rank_names import RANK_NAMES
from graphmem.torch_releases.release import written

MANIFEST = (*CUDA_NAMES, *INNER_NAMES, *RANK_NAMES, *COMPILER_NAMES)
_HAS_CUDA = torch.version.cuda is not None  # read now: the virtual GPU replaces it later


class OldTorchError(InputError):
    """The installed torch is too old for graphmem."""

    def __init__(self, version: object, oldest: str, newest: str) -> None:
        super().__init__(
            f"torch {version} is too old: graphmem runs on {oldest} to {newest}, and on newer ones",
            hint=f"`pip install 'torch>={oldest}'`; `--torch X.Y` selects the CUDA rules of "
            "an older release",
        )


class MissingNameError(InputError):
    """The installed torch lacks a name that graphmem replaces."""

    def __init__(
        self, version: object, owner: str, name: str, why: str, oldest: str, newest: str
    ) -> None:
        super().__init__(
            f"torch {version} has no {owner}.{name}, which graphmem needs for {why}",
            hint=f"graphmem was tested on torch {oldest} to {newest}",
        )


def check_supported(release: Release) -> None:
    """Refuse a release that is too old for graphmem.

    Raises:
        InputError: it is too old.
    """
    if release < OLDEST:
        raise OldTorchError(torch.__version__, written(OLDEST), written(NEWEST_TRIED))


def missing_names(release: Release) -> Iterator[tuple[str, Names]]:
    """Yield the names that the installed PyTorch should have but lacks, each with its row."""
    for row in MANIFEST:
        if row.are_expected(release, has_cuda=_HAS_CUDA):
            for name in row.missing():
                yield name, row


def check_replaced(owner: Any, name: str, release: Release) -> None:
    """Refuse to replace a PyTorch name that has no row, or that does not exist.

    Raises:
        InternalError: it has no row.
        InputError: this PyTorch lacks it.
    """
    if not _is_of_torch(owner):
        return
    row = _row_of(owner, name)
    if row is None:
        raise InternalError(f"{_path_of(owner)}.{name} is replaced but not in torch_releases/")
    if row.are_expected(release, has_cuda=_HAS_CUDA) and not hasattr(owner, name):
        raise MissingNameError(
            torch.__version__, row.owner, name, row.why, written(OLDEST), written(NEWEST_TRIED)
        )


@cache
def _row_of(owner: Any, name: str) -> Names | None:
    found = (row for row in MANIFEST if name in row.names.split() and _is_at(row.owner, owner))
    return next(found, None)


def _is_at(path: str, owner: Any) -> bool:
    try:
        return owner_at(path) is owner
    except AttributeError:  # its module is not imported
        return False


def _is_of_torch(owner: Any) -> bool:
    return _path_of(owner).split(".")[0] == "torch"


def _path_of(owner: Any) -> str:
    if isinstance(owner, ModuleType):
        return owner.__name__
    return f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else ""
