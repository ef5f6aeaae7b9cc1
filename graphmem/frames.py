"""Whose code a frame runs: the one answer for the whole program.

The user's own is what is in no other place: not graphmem (its passes too, which an editable install
keeps elsewhere), not torch, not the standard library, not an installed package. Lines of installed
packages are looked at as well, where the user's own are: a model of `transformers` is what runs.

Nothing here imports torch, so that a wrong name is answered at once.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, TracebackType
from typing import TypeVar

_Function = TypeVar("_Function", bound=Callable[..., object])

INSTALLED = ("site-packages", "dist-packages")
"""Folders that hold installed packages (Python's site module; Debian's)."""

_GRAPHMEM = Path(__file__).parent
_STANDARD_LIBRARY = tuple({f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")})
_acting: set[CodeType] = set()


class Origin(Enum):
    """Who wrote the code of a file."""

    USER = "the user"
    LIBRARY = "an installed package"
    TORCH = "torch"
    GRAPHMEM = "graphmem"
    STANDARD_LIBRARY = "Python's standard library"


@lru_cache(maxsize=4096)
def origin_of(file: str) -> Origin:
    """Who wrote a file, by its path."""
    if file.startswith(_own_folders()):
        return Origin.GRAPHMEM
    if file.startswith(_torch_folder()) or _COMPILED in file:
        return Origin.TORCH
    if is_installed(file):
        return Origin.LIBRARY
    if file.startswith((*_STANDARD_LIBRARY, "<frozen")):
        return Origin.STANDARD_LIBRARY
    return Origin.USER


def is_program(file: str) -> bool:
    """Whether a file belongs to the program under analysis: the user's own, or a package's."""
    return origin_of(file) in (Origin.USER, Origin.LIBRARY)


def is_installed(file: str) -> bool:
    """Whether a file is in a folder of installed packages, on this machine or another."""
    return any(f"/{folder}/" in f"/{file}".replace("\\", "/") for folder in INSTALLED)


@lru_cache(maxsize=1)
def _own_folders() -> tuple[str, ...]:
    passes = find_spec("graphmem.passes")
    places = [] if passes is None else list(passes.submodule_search_locations or ())
    return tuple(f"{place}/" for place in (_GRAPHMEM, *places))


@lru_cache(maxsize=1)
def _torch_folder() -> str:
    torch = sys.modules.get("torch")
    spec = find_spec("torch") if torch is None else None
    file = spec.origin if spec is not None else getattr(torch, "__file__", None)
    return f"{Path(file).parent}/" if file else "<no torch>"


@lru_cache(maxsize=1)
def packages_folder() -> str:
    """Where torch is installed, and mostly all else."""
    return f"{Path(_torch_folder()).parent}/"


def short_path(file: str) -> str:
    """A path as people write it: relative to here, or to the installed packages, else whole."""
    path = Path(file)
    if path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return file.removeprefix(packages_folder())


def acts_for_the_program(function: _Function) -> _Function:
    """Mark a function that does what the program would do: it calls user code, or stands for torch.

    What it raises, and a call in it that has no frame of its own, is the user's to mend.
    """
    _acting.add(function.__code__)
    return function


def is_own_fault(error: BaseException) -> bool:
    """Whether graphmem raised an error by itself: in its innermost frame, acting for nobody."""
    innermost: TracebackType | None = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    if innermost is None:
        return False
    code = innermost.tb_frame.f_code
    if origin_of(code.co_filename) is not Origin.GRAPHMEM:
        return False
    if code.co_filename.startswith(_STAND_INS):
        return False
    return not (code in _acting and isinstance(error, _PROGRAM_ERRORS))


_COMPILED = "torchinductor_"  # the folders of what Inductor writes
_STAND_INS = f"{_GRAPHMEM}/virtual_gpu/"
_PROGRAM_ERRORS = (RuntimeError, TypeError, ValueError, IndexError, AssertionError)
