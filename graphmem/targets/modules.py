"""Find the user's modules, and load them as `python file.py` does."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from graphmem.asked_types import compiled
from graphmem.frames import INSTALLED
from graphmem.targets import messages
from graphmem.user_errors import user_error

_MAKING_NAMES = {"__getattr__", "eval", "exec", "globals", "locals", "setattr", "vars"}
"""If a file uses one of these, its code does not contain all its names."""
_KEPT = sys.stdlib_module_names | {"__main__", "graphmem"}


@dataclass(frozen=True)
class PythonFile:
    """A target named by its path."""

    name: str
    path: Path
    code: CodeType = field(repr=False)

    @classmethod
    def find(cls, name: str) -> PythonFile:
        """Read and compile a file, without running it.

        Raises:
            InputError: there is no such file, it is not Python, or its syntax is wrong.
        """
        path = existing_file(name).resolve()
        if path.suffix != ".py":
            raise messages.NotPythonError(name)
        try:
            return cls(name, path, compiled(path.read_bytes(), path))
        except (SyntaxError, ValueError) as error:  # ValueError: null bytes
            raise user_error(error, name) from error

    @property
    def folder(self) -> Path:
        """The folder of its siblings, with links followed, as in `python file.py`."""
        return self.path.parent

    def check_names(self, function: str) -> None:
        """Reject a file that cannot define a function, such as a script, without running it.

        Raises:
            InputError: no statement of the file defines that name.
        """
        names = set(self.code.co_names)
        if function in names or names & _MAKING_NAMES or ("*",) in self.code.co_consts:
            return
        functions = [
            each.co_name
            for each in self.code.co_consts
            if isinstance(each, CodeType) and each.co_name in names
        ]
        raise messages.NoFunctionError(function, self.name, functions)

    def load(self) -> ModuleType:
        """Run the file as a module of its name, so that siblings can import it."""
        name = self.path.stem.replace(".", "_")
        if name in sys.modules:  # an installed module of that name is in use
            name += "_target"
        spec = importlib.util.spec_from_file_location(name, self.path)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        exec(self.code, vars(module))
        return module


@dataclass(frozen=True)
class DottedModule:
    """A target named like an import; Python looks in `folder` first."""

    name: str
    folder: Path

    def load(self) -> ModuleType:
        """Import the module.

        Raises:
            InputError: there is no such module.
        """
        try:
            module = importlib.import_module(self.name)
        except (ModuleNotFoundError, TypeError, ValueError) as error:
            missing = error.name if isinstance(error, ModuleNotFoundError) else self.name
            if missing is None or not f"{self.name}.".startswith(f"{missing}."):
                raise
            raise messages.NoSuchModuleError(self.name, _names_in(self.folder)) from error
        if module.__file__ is None:
            raise messages.FolderError(self.name, "module", self._files())
        return module

    def _files(self) -> str:
        names = [name for name in _names_in(self.folder / self.name) if name.endswith(".py")]
        return ", ".join(f"{self.name}/{name}" for name in names) or "it holds no .py file"


def existing_file(name: str) -> Path:
    """The path of an existing file.

    Raises:
        InputError: it does not exist (the hint has the nearest names in its folder), or is a
            folder.
    """
    path = Path(name)
    if path.is_dir():
        raise messages.FolderError(name, "file")
    if path.exists():
        return path
    with suppress(FileNotFoundError, NotADirectoryError, ValueError):
        path.stat()  # `exists` hides why a file cannot be read since Python 3.14
    raise messages.NoSuchFileError(name, path, _names_in(path.parent))


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []


def function_of(module: ModuleType, name: str, place: str) -> Callable[..., Any]:
    """The function `name` of a module that the user calls `place`.

    Raises:
        InputError: there is none (the hint has the nearest names), or it is not a function.
    """
    import torch

    if not hasattr(module, name):
        raise messages.NoFunctionError(name, place, _functions(module))
    found = getattr(module, name)
    is_class = isinstance(found, type)
    if isinstance(found, torch.nn.Module) or (is_class and issubclass(found, torch.nn.Module)):
        raise messages.ModelNotFunctionError(name, place)
    if not callable(found):
        raise messages.NotCallableError(name, place, type(found).__name__)
    function: Callable[..., Any] = found
    return function


def _functions(module: ModuleType) -> list[str]:
    return [
        key
        for key, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    ]


@contextmanager
def importing_from(folder: Path, program: str) -> Iterator[None]:
    """Let Python import from `folder` first, reloading modules; see the package's clauses.

    Modules of the standard library, installed ones and graphmem itself are never reloaded.
    """
    path, argv = list(sys.path), list(sys.argv)
    set_aside = _take_out(
        top for top, home in _homes().items() if home == folder or _has_module(folder, top)
    )
    sys.path.insert(0, str(folder))
    sys.argv[:] = [program.partition(":")[0]]
    importlib.invalidate_caches()
    try:
        yield
    finally:
        added = {folder, *(Path(entry) for entry in sys.path if entry not in path)}
        _take_out(top for top, home in _homes().items() if home in added)
        sys.modules.update(set_aside)
        sys.path[:], sys.argv[:] = path, argv


def _homes() -> dict[str, Path]:
    """The folders of the top-level modules that may be reloaded."""
    homes = {}
    for top in {name.partition(".")[0] for name in sys.modules} - _KEPT:
        module = sys.modules.get(top)
        folders = list(getattr(module, "__path__", None) or ())  # for a package
        place = folders[0] if folders else getattr(module, "__file__", None)
        if place is not None and Path(place).parent.name not in INSTALLED:
            homes[top] = Path(place).parent
    return homes


def _has_module(folder: Path, top: str) -> bool:
    return (folder / f"{top}.py").is_file() or (folder / top / "__init__.py").is_file()


def _take_out(tops: Iterable[str]) -> dict[str, ModuleType]:
    """Forget modules and everything below them, and return them."""
    chosen = set(tops)
    names = [name for name in sys.modules if name.partition(".")[0] in chosen]
    return {name: sys.modules.pop(name) for name in names}
