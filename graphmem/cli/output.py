"""Where commands write: the terminal with colour and progress, or a file, whole or not at all."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.status import Status

from graphmem.errors import InputError

PLAIN_WIDTH = 100


def console() -> Console:
    """The console for results: as wide as the terminal, or 100 columns without one."""
    return Console(
        highlight=False, soft_wrap=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH
    )


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is being done; silent where that is no terminal."""
    stderr = Console(stderr=True)
    if not stderr.is_terminal:
        yield lambda message: None
        return
    with Status("starting", console=stderr) as status:
        yield status.update


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8, as `write_bytes` does."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file beside its place and rename it, so that nobody ever sees half of it.

    Raises:
        InputError: the folder does not exist or cannot be written.
    """
    beside = None
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        beside = Path(name)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        umask = os.umask(0)
        os.umask(umask)
        beside.chmod(0o666 & ~umask)
        beside.replace(path)
    except OSError as error:
        if beside is not None:
            beside.unlink(missing_ok=True)
        raise InputError(f"cannot write {path}: {error.strerror}") from error
