"""Classify frames by the origin of their code; every part of graphmem uses this module.

User code is everything else: not graphmem (including its passes, which an editable install keeps
elsewhere), not torch, not the standard library, not an installed package. Lines of installed
packages count as part of the program as well, for example a model from `transformers`.

This module does not import torch, so that errors such as wrong names are reported at once.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
_ABSENT_PACKAGES = str(_GRAPHMEM / "virtual_device" / "stand_ins" / "_").removesuffix("_")
_STANDARD_LIBRARY = tuple({f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")})
_acting: set[CodeType] = set()


class Origin(Enum):
    """The origin of a file's code."""

    USER = "the user"
    LIBRARY = "an installed package"
    TORCH = "torch"
    GRAPHMEM = "graphmem"
    STANDARD_LIBRARY = "Python's standard library"


@lru_cache(maxsize=4096)
def origin_of(file: str) -> Origin:
    """The origin of a file, by its path."""
    if file.startswith(_own_folders()):
        return Origin.GRAPHMEM
    if file.startswith(_torch_folder()) or any(part in file for part in _WRITTEN):
        return Origin.TORCH
    if is_installed(file):
        return Origin.LIBRARY
    if file.startswith((*_STANDARD_LIBRARY, "<frozen")):
        return Origin.STANDARD_LIBRARY
    return Origin.USER


def is_of_absent_package(file: str) -> bool:
    """Whether a file is graphmem's, and stands in for one of a package that is not installed."""
    return file.startswith(_ABSENT_PACKAGES)


def is_program(file: str) -> bool:
    """Whether a file belongs to the program under analysis: the user's, or a package's."""
    return origin_of(file) in (Origin.USER, Origin.LIBRARY)


def is_program_code(code: CodeType) -> bool:
    """Whether code belongs to the program: its file does, and dataclasses did not write it."""
    return is_program(code.co_filename) and not is_by_dataclasses(code)


def is_by_dataclasses(code: CodeType) -> bool:
    """Whether code is a method that dataclasses wrote for a class."""
    return code.co_qualname.startswith(_METHODS)


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
    """The folder where torch, and usually every other package, is installed."""
    return f"{Path(_torch_folder()).parent}/"


_begun_in: list[Path] = []


@contextmanager
def beginning_here() -> Iterator[Path]:
    """Name files relative to this working directory, whichever one the program changes to."""
    _begun_in.append(Path.cwd())
    try:
        yield _begun_in[-1]
    finally:
        _begun_in.pop()


def short_path(file: str) -> str:
    """A path relative to the installed packages or to the working directory, else in full.

    The packages come first: often their environment is in the project.
    """
    if file.startswith(packages_folder()):
        return file.removeprefix(packages_folder())
    return _relative(file, _begun_in[-1] if _begun_in else Path.cwd())


@lru_cache(maxsize=1024)
def _relative(file: str, working_directory: Path) -> str:
    path = Path(file)
    is_below = path.is_relative_to(working_directory)
    return str(path.relative_to(working_directory)) if is_below else file


def acts_for_the_program(function: _Function) -> _Function:
    """Mark a function that acts for the program: it calls user code, or stands in for torch.

    The user has to fix the errors that it raises itself, or that a frameless call in it raises.
    """
    _acting.add(function.__code__)
    return function


def is_own_fault(error: BaseException) -> bool:
    """Whether graphmem itself raised an error: its frame is innermost, and not a stand-in.

    A name that the package does not have is its caller's mistake.
    """
    if isinstance(error, AttributeError) and error.obj is sys.modules["graphmem"]:
        return False
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


# What PyTorch writes and runs: the folders of Inductor's output; the code of a `torch.fx` graph
# (torch/fx/graph_module.py, `_exec_with_source`); up to 2.9, a file that
# torch/distributed/nn/jit/instantiator.py makes in a temporary folder when it is imported.
_WRITTEN = ("torchinductor_", "<eval_with_key>", "/_remote_module_")
# The methods that dataclasses write for a class (dataclasses.py, `_create_fn`; from Python 3.13 on
# `_FuncBuilder`). They share the file "<string>" with what a program passes to `exec`.
_METHODS = "__create_fn__.<locals>."
_STAND_INS = f"{_GRAPHMEM}/virtual_device/"
_PROGRAM_ERRORS = (RuntimeError, TypeError, ValueError, IndexError, AssertionError)
