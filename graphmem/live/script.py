"""Run a Python script or module as `python SCRIPT` or `python -m MODULE` does, in this process.

A name that is no file may be a command that a package installs, such as `llamafactory-cli`.
"""

from __future__ import annotations

import atexit
import importlib.util
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any, Protocol

from graphmem.asked_types import compiled
from graphmem.errors import InputError, did_you_mean_file
from graphmem.frames import Origin, is_program, origin_of
from graphmem.live.program_threads import ProgramThreads
from graphmem.training_step import TrainingStep


class NoSuchProgramError(InputError):
    """No script or module has that name."""


class ProgramDevice(Protocol):
    """What a program runs on."""

    def follow(self, step: TrainingStep) -> None:
        """Know the functions of a step whose loop is graphmem's."""

    @property
    def threads(self) -> ProgramThreads:
        """The threads that the program starts."""

    def finish(self) -> None:
        """Mark the end of the program."""


class Program(Protocol):
    """What runs to its end on a virtual GPU."""

    def run(self, device: ProgramDevice) -> None:
        """Run it, and tell the device when it has ended, however it ends."""


@dataclass(frozen=True)
class UserProgram:
    """A script or module to run.

    Attributes:
        name: the path of a script, or the name of a module.
        is_module: whether it is a module.
        arguments: `sys.argv[1:]`.
        ends_process: whether the process ends after it.
    """

    name: str
    is_module: bool
    arguments: Sequence[str]
    ends_process: bool = False

    def run(self, device: ProgramDevice) -> None:
        """Run it as `__main__`, with `sys.argv` and `sys.path[0]` as Python sets them.

        Args:
            device: is told when it has ended, however it ends, while its globals exist.

        Raises:
            NoSuchProgramError: the script or module does not exist.
        """
        with _interpreter_restored():
            code, module = self._load_module() if self.is_module else _load_script(self.name)
            sys.argv = [str(module.__file__), *self.arguments]
            sys.modules["__main__"] = module
            if self.ends_process:  # registered before the program's own, so that it comes after
                atexit.register(_clear, module.__dict__)
            try:
                with device.threads.running():
                    exec(code, module.__dict__)
            finally:
                device.finish()

    def _load_module(self) -> tuple[CodeType, ModuleType]:
        _put_first(Path.cwd())
        spec: Any = _find(self.name)
        if spec.submodule_search_locations is not None:
            spec = _find(f"{self.name}.__main__")
        code = spec.loader.get_code(spec.name)
        if code is None:
            raise NoSuchProgramError(f"module {self.name} is not written in Python")
        module = _main(spec.origin)
        module.__spec__, module.__loader__, module.__package__ = spec, spec.loader, spec.parent
        return code, module


def _clear(names: dict[str, Any]) -> None:
    """Clear the globals of `__main__`, as Python does once the functions of `atexit` have run.

    Files that it left open are written then. Private names come first, and a thread that still
    needs one ends silently, as it would with Python (`_PyModule_ClearDict` in CPython's
    Objects/moduleobject.c).
    """
    threading.excepthook = lambda failure: None
    private = [each for each in names if each[:1] == "_" != each[1:2]]
    for name in [*private, *names]:
        if name != "__builtins__":
            names[name] = None


def _load_script(name: str) -> tuple[CodeType, ModuleType]:
    file = _file_of(name)
    _put_first(Path(file).resolve().parent)
    try:
        source = Path(file).read_bytes()
    except OSError as error:
        reason = error.strerror or error
        path = Path(name)
        names = sorted(each.name for each in path.parent.glob("*.py"))
        hint = did_you_mean_file(path, names, "name a script, or a module with -m")
        raise NoSuchProgramError(f"cannot read {name}: {reason}", hint=hint) from error
    return compiled(source, file), _main(file)


def _put_first(folder: Path) -> None:
    """Put a folder in the place of graphmem's own; under `python -P` there is none."""
    sys.path[0 : not sys.flags.safe_path] = [str(folder)]


def _file_of(name: str) -> str:
    """The script of that name, or else the command, if it is written in Python."""
    command = None if Path(name).exists() else shutil.which(name)
    return command if command and _is_python(command) else name


def _is_python(command: str) -> bool:
    """Whether the command names Python as its interpreter.

    If that path is too long for the first line, pip and uv write it into the second
    (`_build_shebang`, pip/_vendor/distlib/scripts.py).
    """
    with Path(command).open("rb") as lines:
        return b"python" in lines.readline(256) + lines.readline(4096)


@contextmanager
def _interpreter_restored() -> Iterator[None]:
    """Restore the interpreter's arguments, path and main module."""
    argv, path, main = sys.argv, sys.path[:], sys.modules["__main__"]
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path
        sys.modules["__main__"] = main


def _find(name: str) -> Any:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError) as error:
        raise NoSuchProgramError(f"cannot find module {name}: {error}") from error
    if spec is None or spec.loader is None:
        raise NoSuchProgramError(
            f"there is no module {name}", hint="`python -m` must find it from here"
        )
    return spec


def _main(file: str) -> ModuleType:
    module = ModuleType("__main__")
    module.__file__ = file
    module.__builtins__ = __builtins__  # type: ignore[attr-defined]
    return module


def as_on_card(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames that a card has not: graphmem's, and kernels in Python."""
    entries = []
    while traceback is not None:
        if origin_of(_file(traceback)) is not Origin.GRAPHMEM:
            entries.append(traceback)
        traceback = traceback.tb_next
    while entries and any(map(_is_fake, entries)) and not is_program(_file(entries[-1])):
        entries.pop()
    kept: TracebackType | None = None
    for each in reversed(entries):
        kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return kept


def _file(entry: TracebackType) -> str:
    return entry.tb_frame.f_code.co_filename


def _is_fake(entry: TracebackType) -> bool:
    """Whether the frame belongs to fake tensors, whose kernels are C++ on a card."""
    return str(Path("torch", "_subclasses")) in _file(entry)
