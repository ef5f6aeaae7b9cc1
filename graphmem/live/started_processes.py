"""What a program starts in other processes, which have no virtual card.

It may be a launcher, as `axolotl train` starts, or a function of the program's own, as I-JEPA's
main.py calls. The user is told at the end if nothing ran on the card.

A program that was stopped does not tell its processes to end, as it would have done later, and
Python would wait for them: they are ended with it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, wraps
from multiprocessing.process import BaseProcess, active_children
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

from graphmem.frames import is_program, short_path
from graphmem.live.launchers import LAUNCHER, without_launcher
from graphmem.virtual_device.patching import replaced


class StartedCommand(NamedTuple):
    """A command that a program starts.

    Attributes:
        words: its name and arguments.
        environment: the variables that it is given; none if it inherits the program's.
    """

    words: list[str]
    environment: Mapping[str, str]


class Started(NamedTuple):
    """What a program started in other processes.

    Attributes:
        commands: the commands.
        functions: those that it calls in processes of `multiprocessing`.
    """

    commands: list[StartedCommand]
    functions: list[FunctionType]


def what_it_started(started: Started) -> str | None:
    """A sentence on the first launcher or function of its own that a program started, or None."""
    for (launcher, *arguments), environment in started.commands:
        name = Path(launcher).name
        runs_code = arguments[:1] == ["-c"]  # of Python: what a library asks it for, no program
        if LAUNCHER.fullmatch(name) and not runs_code:
            return (
                f"it started {name}, in a process that has no virtual card; name what that runs: "
                f"{without_launcher(arguments, environment)}"
            )
    for function in started.functions:
        code = function.__code__
        if is_program(code.co_filename):
            return (
                f"it called {function.__name__} ({short_path(code.co_filename)}:"
                f"{code.co_firstlineno}) in another process, which has no virtual card; "
                "run a script that calls it in its own process"
            )
    return None


_listeners: list[Callable[[StartedCommand], None]] = []
"""Called with each command before its process starts."""


@contextmanager
def noting_processes() -> Iterator[Started]:
    """Note the processes that the program starts."""
    started = Started([], [])
    with (
        before_commands(started.commands.append),
        replaced([(BaseProcess, "start", _noting_start(started))]),
    ):
        yield started


@contextmanager
def before_commands(listener: Callable[[StartedCommand], None]) -> Iterator[None]:
    """Call a function with each command that the program starts, before its process starts."""
    _hook()
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def end_processes() -> None:
    """End what a stopped program left running by `multiprocessing`, as Python ends daemons."""
    for each in active_children():
        each.terminate()


def _noting_start(started: Started) -> Callable[[Any], None]:
    start = BaseProcess.start

    @wraps(start)
    def note_and_start(process: Any) -> None:
        function = getattr(process, "_target", None)
        if isinstance(function, FunctionType):
            started.functions.append(function)
        start(process)

    return note_and_start


@cache
def _hook() -> None:
    """Hear of processes from now on: an audit hook cannot be removed."""
    sys.addaudithook(_note)


def _note(event: str, args: tuple[object, ...]) -> None:
    environment: Any = None
    if event == "subprocess.Popen" and _listeners:
        _, command, _, environment = args
        parts = [command] if isinstance(command, str | bytes | os.PathLike) else command
        decoded = [os.fsdecode(each) for each in parts]  # type: ignore[attr-defined]
    elif event == "os.system" and _listeners:
        decoded = [os.fsdecode(args[0])]  # type: ignore[arg-type]
    else:
        return
    for listener in _listeners:
        listener(StartedCommand(decoded, environment or {}))
