"""Where commands write: the terminal with colour and progress, or a file, whole or not at all."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.status import Status

from graphmem.files import write_bytes, write_text

__all__ = ["console", "progress", "write_bytes", "write_text"]

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
