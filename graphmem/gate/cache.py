"""A cache of reports, keyed by the content they were made from, in `.graphmem_cache`.

Clauses:
  (1) a key is the target, its options and the environment: Python, the versions of every installed
      package, and graphmem's own code;
  (2) under a key there are up to `_KEPT` entries, each with the digests of the files that its
      analysis read; an entry is valid if all of them are unchanged;
  (3) each entry is a separate file, written atomically, so that concurrent checks cannot corrupt
      each other's; an unreadable one is ignored;
  (4) entries unused for a month are dropped;
  (5) only entries owned by this user, not tracked by git and not world-writable are trusted:
      otherwise a commit could bring along the report that lets it pass.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import msgspec

from graphmem.errors import InputError
from graphmem.files import write_bytes, write_text
from graphmem.gate.dependencies import are_unchanged
from graphmem.gate.git import tracked_below
from graphmem.gate.jobs import Job, Outcome
from graphmem.installation import installation_digest

FOLDER = ".graphmem_cache"
_FORMAT = "1"
_KEPT = 8
_UNUSED_SECONDS = 30 * 24 * 3600
_MARKER = "Signature: 8a477f597d28d172789f06886806bc55\n# https://bford.info/cachedir/\n"


class Cache:
    """The reports of one project."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folder = root / FOLDER

    @cached_property
    def _tracked(self) -> frozenset[str] | None:
        """Files of the folder that git tracks, in lower case; None if git fails."""
        return tracked_below(self._root, FOLDER)

    def _is_trusted(self, path: Path) -> bool:
        if self._tracked is None or self._folder.is_symlink() or path.parent.is_symlink():
            return False
        name = path.relative_to(self._root).as_posix().lower()
        state = path.lstat()
        is_own = not hasattr(os, "geteuid") or state.st_uid == os.geteuid()
        is_closed = stat.S_ISREG(state.st_mode) and not state.st_mode & stat.S_IWOTH
        return is_own and is_closed and not {name, FOLDER} & self._tracked

    def find(self, job: Job) -> Outcome | None:
        """The outcome of an earlier analysis of the same content, or None."""
        for path in self._entries(job):
            outcome = _read(path)
            if outcome is not None and are_unchanged(outcome.sources, job.root):
                with suppress(OSError):
                    path.touch()
                return outcome
        return None

    def known_sources(self, job: Job) -> frozenset[str]:
        """Every file that analyses of this target have read."""
        outcomes = (_read(path) for path in self._entries(job))
        return frozenset(name for outcome in outcomes if outcome for name in outcome.sources)

    def keep(self, job: Job, outcome: Outcome) -> None:
        """Store a report; errors in writing are ignored."""
        if outcome.report is None:
            return
        folder = self._folder / _key(job)
        sources = msgspec.json.encode(outcome.sources, order="sorted")
        with suppress(OSError, InputError):
            self._make(folder)
            name = f"{hashlib.sha256(sources).hexdigest()[:32]}.json"
            write_bytes(folder / name, msgspec.json.encode(outcome))
            for old in self._entries(job)[_KEPT:]:
                old.unlink(missing_ok=True)

    def drop_unused(self) -> None:
        """Drop entries unused for a long time, such as those of an older torch."""
        oldest = time.time() - _UNUSED_SECONDS
        with suppress(OSError):
            for path in self._folder.glob("*/[!.]*.json"):
                if path.stat().st_mtime < oldest:
                    path.unlink(missing_ok=True)

    def _entries(self, job: Job) -> list[Path]:
        """The entries under a job's key, newest first."""
        found: list[tuple[int, Path]] = []
        with suppress(OSError):  # another check may drop entries meanwhile
            for path in (self._folder / _key(job)).glob("[!.]*.json"):
                if self._is_trusted(path):
                    found += [(path.stat().st_mtime_ns, path)]
        return [path for _, path in sorted(found, reverse=True)]

    def _make(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in (("CACHEDIR.TAG", _MARKER), (".gitignore", "*\n")):
            if not (self._folder / name).exists():
                write_text(self._folder / name, text)


def _read(path: Path) -> Outcome | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Outcome)
    except (OSError, msgspec.DecodeError):
        return None


def _key(job: Job) -> str:
    parts = (_FORMAT, installation_digest(), job.target, job.request)
    text = msgspec.json.encode(parts, order="sorted", enc_hook=str)  # an `AssumedCard` is a name
    return hashlib.sha256(text).hexdigest()[:32]
