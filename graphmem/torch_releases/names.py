"""A row in the list of PyTorch names, and whether the installed PyTorch has them.

Private names of PyTorch may disappear with any release. Each one that graphmem reads or replaces
has a row in `cuda_names.py`, `inner_names.py`, `rank_names.py` or `compiler_names.py`, so that a
missing one is noticed at the start.
"""

from __future__ import annotations

import enum
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from graphmem.torch_releases.differences import OLDEST, Release

_TORCH = Path(torch.__file__).parent


class Build(enum.Enum):
    """Which builds of PyTorch have a name."""

    ANY = "any build"
    CUDA = "CUDA builds"
    INITIALIZED = "CUDA builds, once CUDA is initialized"


@dataclass(frozen=True)
class Names:
    """Names of one owner that serve one purpose.

    Attributes:
        owner: the module or class, such as "torch._C".
        names: the names, separated by spaces.
        why: what graphmem needs them for.
        without: what breaks if they are missing.
        since: the first release that has them, of those that graphmem runs on.
        before: the first release that no longer has them.
        build: which builds have them.
    """

    owner: str
    names: str
    why: str
    without: str
    since: Release = OLDEST
    before: Release | None = None
    build: Build = Build.ANY

    def are_expected(self, release: Release, *, has_cuda: bool) -> bool:
        """Whether a build of a release should have them."""
        is_of_build = self.build is Build.ANY or (self.build is Build.CUDA and has_cuda)
        is_there_still = self.before is None or release < self.before
        return is_of_build and self.since <= release and is_there_still

    def missing(self) -> Iterator[str]:
        """Yield the ones that the installed PyTorch lacks."""
        for name in self.names.split():
            if not _is_there(self.owner, name):
                yield f"{self.owner}.{name}"


def owner_at(path: str) -> Any:
    """The module or class at a path; None if its module is not imported.

    Raises:
        AttributeError: the module has no such class.
    """
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        found: Any = sys.modules.get(".".join(parts[:count]))
        if found is not None:
            for part in parts[count:]:
                found = inspect.getattr_static(found, part)  # getattr would import `torch._dynamo`
            return found
    return None


def _is_there(owner: str, name: str) -> bool:
    try:
        found = owner_at(owner)
    except AttributeError:  # its module is not imported
        wanted = owner.rpartition(".")[2] if name.startswith("__") else name
        return bool(re.search(rf"\b{wanted}\b", _source_of(owner)))
    return hasattr(found, name) or name in getattr(found, "__annotations__", ())


@cache
def _source_of(path: str) -> str:
    """The source of a path's module, which is not imported because that can take seconds."""
    parts = path.split(".")[1:]
    for count in range(len(parts), 0, -1):
        place = _TORCH.joinpath(*parts[:count])
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.exists():
                return file.read_text(encoding="utf-8")
    return ""
