"""Write files atomically: whole or not at all.

Clauses:
  (1) a regular or new file is written to a temporary file next to it and renamed over it; symbolic
      links are followed and kept; mode and owner stay the same;
  (2) a device, a fifo and a stream of this process (`/dev/stdout`, `/dev/fd/3`) are written to
      directly: replacing them would break their other users.

Not covered: access lists and extended attributes of a replaced file; other hard links to it keep
the old content.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import tempfile
from pathlib import Path
from typing import TextIO

from graphmem.errors import InputError

_STREAM = re.compile(r"/dev/(?:std(?P<name>in|out|err)|fd/(?P<fd>\d+))|/proc/self/fd/(?P<proc>\d+)")
_NAMED_STREAMS = {"in": 0, "out": 1, "err": 2}
_MOST_LINKS = 40  # in one path, Linux's limit (path_resolution(7))


class PathIsFolderError(InputError):
    """A folder stands where a file is to be written."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"cannot write {path}: it is a folder", hint="name a file in it")


class NoSuchFolderError(InputError):
    """A file is to be written into a folder that is not there."""

    def __init__(self, path: Path, folder: Path) -> None:
        super().__init__(f"cannot write {path}: no such folder", hint=f"mkdir -p {folder}")


class ReadOnlyFileError(InputError):
    """A file may not be replaced."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"cannot write {path}: it is read-only", hint="name another file")


class ReadOnlyFolderError(InputError):
    """A folder takes no new files."""

    def __init__(self, path: Path, folder: Path) -> None:
        super().__init__(
            f"cannot write {path}: {folder} is read-only", hint="name a file elsewhere"
        )


class UnwritableError(InputError):
    """The operating system does not take the file."""

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(f"cannot write {path}: {reason}")


class EndlessLinksError(InputError):
    """Symbolic links lead in a circle."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"cannot write {path}: its links lead nowhere")


def check_place(path: Path) -> None:
    """Check before the work starts that its result can be written.

    Raises:
        InputError: the folder does not exist or cannot be written, or the path is a folder.
    """
    if _stream(path) is not None:
        return
    place = _place(path)
    if place.is_dir():
        raise PathIsFolderError(path)
    if not place.parent.is_dir():
        raise NoSuchFolderError(path, place.parent)
    if place.exists() and not os.access(place, os.W_OK):
        raise ReadOnlyFileError(path)
    if _is_replaced(place) and not os.access(place.parent, os.W_OK | os.X_OK):
        raise ReadOnlyFolderError(path, place.parent)


def write_text(path: Path, text: str) -> None:
    """Write a text atomically; see `write_bytes`."""
    write_bytes(path, text.encode(errors="backslashreplace"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically, or write to a device, fifo or stream.

    Raises:
        InputError: the folder does not exist or cannot be written, or the disk is full.
    """
    try:
        stream = _stream(path)
        place = _place(path)
        if stream is not None:
            _write_to_stream(stream, content)
        elif _is_replaced(place):
            _replace(place, content)
        else:
            place.write_bytes(content)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UnwritableError(path, error.strerror or error) from error


def _stream(path: Path) -> int | None:
    """The descriptor of this process that a path refers to, directly or through links."""
    for _ in range(_MOST_LINKS):
        found = _STREAM.fullmatch(str(Path.cwd() / path))
        if found is not None:
            return _NAMED_STREAMS.get(found["name"]) or int(found["fd"] or found["proc"] or 0)
        if not path.is_symlink():
            return None
        path = path.parent / path.readlink()
    return None


def _place(path: Path) -> Path:
    """The target of a path."""
    try:
        place = path.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError for circular links, up to Python 3.12
        raise EndlessLinksError(path) from error
    if place.is_symlink():
        raise EndlessLinksError(path)
    return place


def _is_replaced(place: Path) -> bool:
    """Whether the place holds a regular file or nothing."""
    return place.is_file() or not place.exists()


def flush(stream: TextIO | None) -> None:
    """Write what stdout or stderr still has, unless the program has closed it."""
    if stream is not None and not stream.closed:
        stream.flush()


def _write_to_stream(descriptor: int, content: bytes) -> None:
    flush(sys.stdout)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(content)


def _replace(place: Path, content: bytes) -> None:
    """Write next to the place, and rename."""
    beside: Path | None = None
    try:
        with tempfile.NamedTemporaryFile(
            dir=place.parent, prefix=f".{place.name[:64]}.", delete=False
        ) as file:
            beside = Path(file.name)
            file.write(content)
        if _takes_after(beside, place):
            beside.replace(place)
        else:
            place.write_bytes(content)
    finally:
        if beside is not None:
            beside.unlink(missing_ok=True)


def _takes_after(beside: Path, place: Path) -> bool:
    """Give a new file the mode and owner of the old one; False if that is not permitted."""
    if not place.exists():
        umask = os.umask(0)
        os.umask(umask)
        beside.chmod(0o666 & ~umask)
        return True
    old, new = place.stat(), beside.stat()
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        try:
            os.chown(beside, old.st_uid, old.st_gid)
        except OSError:
            return False
    beside.chmod(stat.S_IMODE(old.st_mode))
    return True
