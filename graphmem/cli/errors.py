"""The one place where an exception becomes an exit code and a message on stderr.

Exit codes: 0 fine, 1 the gate or a verification failed, 2 the input was wrong, 3 graphmem itself
broke (graphmem/errors.py). As in shells, 128 plus a signal's number: the user interrupted (130),
the reader of stdout went away (141), the process was terminated (143).
"""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from graphmem.cli.signals import Terminated
from graphmem.errors import GraphmemError, InputError, InternalError
from graphmem.files import flush
from graphmem.plain_text import Console

INTERRUPTED = 130
BROKEN_PIPE = 141
TERMINATED = 143
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass
class Settings:
    """Settings that apply to every command.

    Attributes:
        debug: whether errors show the whole traceback.
        ends_process: whether the process ends with the command.
    """

    debug: bool = False
    ends_process: bool = False


def guarded(run: Callable[[], object], settings: Settings) -> int:
    """Call `run` and return the exit code for its outcome.

    An error prints `error: …`, the user's own traceback where there is one, and `hint: …`; with
    `settings.debug` the whole traceback comes first.
    """
    try:
        exit_code = _call(run)
        flush(sys.stdout)
    except (KeyboardInterrupt, typer.Abort) as stop:
        return TERMINATED if isinstance(stop, Terminated) else INTERRUPTED
    except BrokenPipeError:
        _discard_stdout()
        return BROKEN_PIPE
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # rich answers it so
            return BROKEN_PIPE
        return _report(stop, settings)
    except Exception as error:  # noqa: BLE001
        if isinstance(error, (OSError, ValueError)) and _is_stdout_closed():
            _discard_stdout()
            return BROKEN_PIPE
        return _report(error, settings)
    return exit_code


def open_missing_streams() -> None:
    """Replace a stdout or stderr that the caller has closed (`>&-`) with the null device.

    Python leaves `None` in their place, and the next file that is opened would take their number.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - for good
            setattr(sys, name, nowhere)


def _is_stdout_closed() -> bool:
    """Whether the code under analysis has closed stdout."""
    if sys.stdout.closed:
        return True
    try:
        os.fstat(sys.stdout.fileno())
    except io.UnsupportedOperation:  # not a file, as in a notebook
        return False
    except OSError:
        return True
    return False


def _call(run: Callable[[], object]) -> int:
    try:
        run()
    except typer.Exit as stop:
        return stop.exit_code
    return 0


def _report(error: BaseException, settings: Settings) -> int:
    """Print the message of `error` and return its exit code."""
    if settings.debug:
        traceback.print_exception(error)
    if isinstance(error, SystemExit):
        # graphmem itself stops with typer.Exit. The code 0 or 1 would pass for a verdict.
        print_error(f"the code under analysis called sys.exit({error.code!r})", None, None)
        return InputError.exit_code
    if isinstance(error, GraphmemError):
        print_error(str(error), error.user_traceback, error.hint)
        return error.exit_code
    if isinstance(error, typer.TyperException):
        message = error.format_message().replace("Value error, ", "")  # pydantic's words
        print_error(" ".join(message.split()), None, _usage_hint(error))
        return error.exit_code
    if isinstance(error, OSError) and error.errno in _FULL:
        _discard_stdout()
        print_error(f"cannot write the result: {error.strerror}", None, None)
        return InputError.exit_code
    summary, *_ = str(error).splitlines() or [""]
    print_error(
        f"graphmem itself failed: {type(error).__name__}: {summary}",
        None,
        "run with --debug for the traceback",
    )
    return InternalError.exit_code


def _usage_hint(error: typer.TyperException) -> str:
    """Where to read on, and for an option of other commands, which take it."""
    # Only a usage error knows the command that it arose in.
    context: Any = getattr(error, "ctx", None)
    if context is None:
        return "see `graphmem --help`"
    option = getattr(error, "option_name", None)
    commands = getattr(context.find_root().command, "commands", {})
    takers = [
        f"`graphmem {name}`"
        for name, command in commands.items()
        if not command.hidden and any(option in each.opts for each in command.params)
    ]
    of_others = f"{option} is an option of {' and '.join(takers)}; " if takers else ""
    return f"{of_others}see `{context.command_path} --help`"


def print_error(message: str, user_traceback: str | None, hint: str | None) -> None:
    """Print an error with its hint to stderr."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(Text.assemble(("error: ", "bold red"), message))
    if user_traceback:
        console.print(Text(user_traceback.rstrip()))
    if hint:
        console.print(Text.assemble(("hint: ", "bold"), hint))


def _discard_stdout() -> None:
    """Keep the interpreter's last flush from failing on the closed pipe as well."""
    if sys.stdout.closed:
        return
    null = os.open(os.devnull, os.O_WRONLY)
    if null != sys.stdout.fileno():  # which is the first free number if its file was closed
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
