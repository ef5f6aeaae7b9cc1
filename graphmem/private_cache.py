"""A folder of the user's own files, whose content is executed when it is read back.

Clauses:
  (1) a file is read only if nobody else can have written it: it and its folder belong to this user,
      nobody else may write to them, and neither is a symbolic link;
  (2) a file begins with the digest of the rest; a damaged one is as good as none;
  (3) files are written atomically; errors in writing are ignored;
  (4) beyond a total size those unused for longest are removed.

Where the owner of a file is not known (Windows), nothing is read or written.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

FOLDER = "GRAPHMEM_CACHE"
"""The variable that names another folder; empty, it turns the cache off."""
_DIGEST_BYTES = hashlib.sha256().digest_size
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def users_folder() -> Path | None:
    """The folder of graphmem in the user's cache (XDG Base Directory Specification); None: off."""
    named = os.environ.get(FOLDER)
    if named is not None:
        return Path(named) if named else None
    base = os.environ.get("XDG_CACHE_HOME", "")
    # "If an implementation encounters a relative path, it should consider it invalid."
    return (Path(base) if base.startswith("/") else Path("~/.cache").expanduser()) / "graphmem"


class PrivateCache:
    """Contents by name."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder = folder
        self._most_bytes = most_bytes

    def read(self, name: str) -> bytes | None:
        """The content under a name, or None if there is none to be trusted."""
        try:
            if not _is_private(self._folder.lstat()):
                return None
            opened = os.open(self._folder / name, os.O_RDONLY | os.O_NOFOLLOW)
            with os.fdopen(opened, "rb") as file:
                if not _is_private(os.fstat(opened)):
                    return None
                content = file.read()
            os.utime(self._folder / name)
        except OSError:
            return None
        digest, content = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        return content if hashlib.sha256(content).digest() == digest else None

    def write(self, name: str, content: bytes) -> None:
        """Keep a content."""
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_private(self._folder.lstat()):
                return
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:  # mode 0600
                file.write(hashlib.sha256(content).digest() + content)
            Path(file.name).replace(self._folder / name)
            self._drop_unused()

    def _drop_unused(self) -> None:
        states = [(path.lstat(), path) for path in self._folder.iterdir()]
        total = 0
        for state, path in sorted(states, key=lambda each: each[0].st_mtime_ns, reverse=True):
            total += state.st_size
            if total > self._most_bytes:
                path.unlink(missing_ok=True)


def _is_private(state: os.stat_result) -> bool:
    if not hasattr(os, "geteuid"):
        return False
    is_plain = stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode)
    return is_plain and state.st_uid == os.geteuid() and not state.st_mode & _OTHERS_WRITE
