"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from graphmem.errors import InputError


def check_place(path: Path) -> None:
    """Know before the work is done that its result can be written.

    Raises:
        InputError: the folder does not exist or cannot be written, or the path is a folder.
    """
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder", hint="name a file in it")
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: no such folder", hint=f"mkdir -p {path.parent}")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise InputError(
            f"cannot write {path}: {path.parent} is read-only", hint="name a file elsewhere"
        )


def write_text(path: Path, text: str) -> None:
    """Write a text, whole or not at all; see `write_bytes`."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file beside its place and rename it, so that nobody ever sees half of it.

    Raises:
        InputError: the folder does not exist or cannot be written.
    """
    beside: Path | None = None
    try:
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as file:
            beside = Path(file.name)
            file.write(content)
        umask = os.umask(0)
        os.umask(umask)
        beside.chmod(0o666 & ~umask)
        beside.replace(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    finally:
        if beside is not None:
            beside.unlink(missing_ok=True)
