"""Load targets such as `model.py:build`, `package.module` or `model.pt2` as a `TrainingStep`.

A target is loaded in two stages. `load_target` only checks that the file exists and its syntax is
right. The user's code runs later, in the callable that `Target.imported` yields, because it has to
run on the virtual GPU:

    target = load_target("model.py:build", {"layers": "12"})
    with target.imported() as build:
        graph = trace(build, gpu=gpu, options=options)

Clauses, while that context is open:
  (1) the target's folder is first on `sys.path`, so that its siblings can be imported, even late,
      inside `forward`; for a dotted module it is the working directory;
  (2) `sys.argv` contains only the target's file;
  (3) modules of the folder are reloaded, and forgotten afterwards.

Not covered: files without `.py`, notebooks, functions inside classes.

This package imports torch only where it is needed, so that wrong names are reported at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

from graphmem.frames import acts_for_the_program
from graphmem.targets import messages
from graphmem.targets.modules import DottedModule, PythonFile, function_of, importing_from
from graphmem.targets.objects import Given
from graphmem.targets.settings import arguments_for, defaults_of
from graphmem.training_step import TrainingStep
from graphmem.user_errors import blaming_the_user, user_error

__all__ = ["RECORD", "Target", "blaming_the_user", "is_record", "load_target", "user_error"]

DEFAULT_FUNCTION = "build"
_EXPORTED = ".pt2"
RECORD = ".graphmem"
"""The extension of a saved step (`graphmem/record/`)."""


def is_record(target: object) -> TypeGuard[str]:
    """Whether a target is a saved step rather than code."""
    return isinstance(target, str) and target.endswith(RECORD)


@dataclass(frozen=True)
class Target:
    """A target that a user named.

    Attributes:
        name: the name as the user wrote it.
        folder: the folder of its imports; None for a callable or an exported program.
        is_given: whether it is the model itself, not what makes one.
    """

    name: str
    folder: Path | None
    _make: Callable[[], TrainingStep] = field(repr=False)
    _find: Callable[[], Callable[..., Any]] | None = field(repr=False, default=None)
    is_given: bool = False

    @property
    def within(self) -> str:
        """Where a line of a package ran that no line of the user's called."""
        return f"in {self.name}" if self.is_given else f"in the model that {self.name} made"

    @contextmanager
    def imported(self) -> Iterator[Callable[[], TrainingStep]]:
        """Yield the callable that makes the training step; keep this open while the step runs.

        Each call makes a new step, and raises `InputError` if the user's code fails or returns
        something else.
        """
        with nullcontext() if self.folder is None else importing_from(self.folder, self.name):
            yield self._make

    def defaults(self) -> dict[str, Any]:
        """The defaults of the function's parameters; call this while imported.

        Parameters without a default are left out; an exported program has none.
        """
        return {} if self._find is None else defaults_of(self._find())

    def build(self) -> TrainingStep:
        """Make the training step outside a trace, for a step that imports nothing later.

        Raises:
            InputError: the user's code failed, or returned something else.
        """
        with self.imported() as build:
            return build()


def load_target(target: str | Callable[..., Any], settings: Mapping[str, str]) -> Target:
    """Find a target without running it; exported programs are read here.

    Args:
        target: `path/to/model.py:build`, `package.module:build` (`:build` may be left out), the
            path of an exported program, `model.pt2`, or the function itself.
        settings: keyword arguments for the function, as text, from `--set key=value`.

    Raises:
        InputError: there is no such file, or it cannot be used.
    """
    if not isinstance(target, str):
        name = getattr(target, "__name__", type(target).__name__)
        make = partial(_call, target, name, dict(settings))
        return Target(name, None, make, lambda: target, is_given=isinstance(target, Given))
    try:
        return _find(target, settings)
    except OSError as error:
        raise messages.UnreadableFileError(target, error.strerror) from error


def _find(text: str, settings: Mapping[str, str]) -> Target:
    location, function = _split(text)
    if is_record(location):
        raise messages.SavedStepNotBuiltError(text)
    if Path(location).suffix == _EXPORTED:
        return _exported_target(text, location, function, settings)
    is_path = _is_path(location)
    source = PythonFile.find(location) if is_path else DottedModule(location, Path.cwd())
    find = partial(_find_function, source, function or DEFAULT_FUNCTION)
    make = partial(_make_step, source, function or DEFAULT_FUNCTION, dict(settings))
    return Target(text, source.folder, make, find)


def _split(text: str) -> tuple[str, str]:
    """The place and the function of a target; "" if no function is named."""
    location, colon, function = text.rpartition(":")
    if not colon or "/" in function or "\\" in function:
        location, function = text, ""
    if not location.strip():
        raise messages.NoFileNamedError(text)
    return location, function


def _is_path(location: str) -> bool:
    path = Path(location)
    has_folder = "/" in location or "\\" in location or location in (".", "..")
    return has_folder or path.suffix == ".py" or path.is_file()


def _exported_target(
    text: str, location: str, function: str, settings: Mapping[str, str]
) -> Target:
    if function:
        raise messages.ExportedFunctionError(location, function)
    if settings:
        raise messages.ExportedSettingError(location, next(iter(settings)))
    from graphmem.targets.exported import load_exported

    return Target(text, None, load_exported(location))


def _make_step(
    source: PythonFile | DottedModule, name: str, settings: Mapping[str, str]
) -> TrainingStep:
    """Load the module and call its function."""
    return _call(_find_function(source, name), name, settings)


def _find_function(source: PythonFile | DottedModule, name: str) -> Callable[..., Any]:
    """Load the module and find its function."""
    if isinstance(source, PythonFile):
        source.check_names(name)
    with blaming_the_user(source.name):
        module = source.load()
    return function_of(module, name, source.name)


@acts_for_the_program
def _call(build: Callable[..., Any], name: str, settings: Mapping[str, str]) -> TrainingStep:
    """Call the user's function, and convert its result."""
    from graphmem.targets.returned import step_from

    arguments = arguments_for(build, name, settings)
    with blaming_the_user(f"{name}()"):
        returned = build(**arguments)
    return step_from(returned, name)
