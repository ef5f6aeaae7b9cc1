"""The two ways in which graphmem stops, and the exit code of each.

Scripts can rely on the exit codes: 0 success, 1 the gate or a verification failed, 2 the input was
wrong, 3 graphmem itself failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any


class GraphmemError(Exception):
    """Base of every error that graphmem raises on purpose.

    Attributes:
        exit_code: the exit code of the command line.
        hint: one sentence on what to do, or None.
        user_traceback: the traceback reduced to the user's frames, or None.
        user_line: the user's line that failed, such as `model.py:12`, or None.
    """

    exit_code = 3
    user_line: str | None = None

    def __init__(
        self, message: str, *, hint: str | None = None, user_traceback: str | None = None
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.user_traceback = user_traceback
        if hint is not None:
            self.add_note(f"hint: {hint}")  # for tracebacks, as in a notebook

    def __reduce__(self) -> Any:
        """Pickle the message, not the arguments that subclasses make it from."""
        return _said_before, (type(self), self.args), self.__dict__


def _said_before(kind: type[GraphmemError], args: tuple[str, ...]) -> GraphmemError:
    error = kind.__new__(kind)
    error.args = args
    return error


class InputError(GraphmemError):
    """The user's input cannot be used: a missing file, a wrong return value, an unknown GPU."""

    exit_code = 2

    def __init__(self, message: str, **options: str | None) -> None:
        super().__init__(message, **options)
        for note in _WATCHERS:
            note(self)


_WATCHERS: list[Callable[[InputError], None]] = []


@contextmanager
def input_errors_noted(note: Callable[[InputError], None]) -> Iterator[None]:
    """Call a function with each `InputError` that is made, in any thread, in case it is caught."""
    _WATCHERS.append(note)
    try:
        yield
    finally:
        _WATCHERS.remove(note)


class InternalError(GraphmemError):
    """A bug in graphmem; the message asks for a report."""

    exit_code = 3


def did_you_mean_file(path: Path, names: Iterable[str], otherwise: str | None) -> str | None:
    """A hint for a misspelt path: the nearest of the names in its folder."""
    return did_you_mean(path.name, names, otherwise, lambda near: str(path.parent / near))


def did_you_mean(
    name: str,
    known: Iterable[str],
    otherwise: str | None = None,
    shown: Callable[[str], str] = str,
) -> str | None:
    """A hint for a misspelt name: the nearest known one, as it is to be shown."""
    near = get_close_matches(name, list(known), n=1)
    return f"did you mean {shown(near[0])}?" if near else otherwise
