"""The files that an analysis depends on, recorded while it runs instead of guessed from imports.

Clauses:
  (1) Python modules that were executed or are loaded, except from installed packages, the standard
      library and graphmem itself;
  (2) files below the project's folder that were opened for reading, such as configurations.

  Not covered: directory listings, environment variables, files outside the project, the network.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

from graphmem.frames import Origin, origin_of

_WRITING = os.O_WRONLY | os.O_RDWR
_NO_SOURCES = {".git", ".graphmem_cache", "__pycache__"}


@dataclass
class FilesRead:
    """The files that were executed or opened."""

    executed: set[str] = field(default_factory=set)
    opened: set[str] = field(default_factory=set)

    def digests(self, root: Path) -> dict[str, str]:
        """The relevant files, sorted, each with the digest of its content."""
        modules = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
        executed = {file for file in self.executed | modules if isinstance(file, str)}
        opened = {Path(file).resolve() for file in self.opened}
        files = {Path(file) for file in executed if _is_source(file)}
        files |= {path for path in opened if path.is_relative_to(root) and _counts(path)}
        return {
            each: digest_of(root / each) for each in sorted(_name(path, root) for path in files)
        }


_listener: FilesRead | None = None
_is_listening = False


@contextmanager
def recording_files_read() -> Iterator[FilesRead]:
    """Record every file that is executed or opened in this context."""
    global _listener, _is_listening  # noqa: PLW0603 - an audit hook cannot be removed
    if not _is_listening:
        sys.addaudithook(_hear)
        _is_listening = True
    _listener = sources = FilesRead()
    try:
        yield sources
    finally:
        _listener = None


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if _listener is None:
        return
    if event == "exec" and isinstance(arguments[0], CodeType):
        _listener.executed.add(arguments[0].co_filename)
    elif event == "open" and isinstance(arguments[0], (str, os.PathLike)):
        path, _, flags = arguments
        if not (flags or 0) & _WRITING:
            _listener.opened.add(os.fspath(path))


def _is_source(file: str) -> bool:
    """Whether a module's file counts; the cheap checks exclude nearly all of thousands."""
    return file.endswith(".py") and origin_of(file) is Origin.USER and _counts(Path(file))


def _counts(path: Path) -> bool:
    is_users = origin_of(str(path)) is Origin.USER and not _NO_SOURCES.intersection(path.parts)
    return is_users and path.is_file()


def _name(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def digest_of(path: Path) -> str:
    """The digest of a file's content; "" if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def are_unchanged(digests: Mapping[str, str], root: Path) -> bool:
    """Whether the content of every file is unchanged."""
    return all(digest and digest_of(root / name) == digest for name, digest in digests.items())
