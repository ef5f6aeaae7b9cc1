"""Analyse a target again whenever a file that it depends on is saved.

All analyses run in this process: libraries stay imported and caches warm. Clauses:
  (1) before each analysis, the project's modules are forgotten, so that they are executed anew;
  (2) a file counts as saved if it changed after the last analysis began, so nothing is missed that
      is saved meanwhile;
  (3) files that an earlier analysis read are watched even if the last one failed before it came
      to them.

Not covered: files that an analysis does not read, such as a new module that nothing imports yet;
libraries that are installed or edited meanwhile.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from graphmem.caller import collect
from graphmem.gate.affected import imported
from graphmem.gate.jobs import Job, Outcome, perform

_POLL_SECONDS = 0.2
_SETTLE_SECONDS = 0.05
"""An editor may save several files at once."""


class Watcher:
    """Analyses one target, and waits for its files to change."""

    def __init__(self, job: Job, timeout: float | None = None) -> None:
        """Keep the modules that are loaded now; they are not the project's."""
        self._job = job
        self._timeout = timeout
        self._kept = frozenset(sys.modules)
        self._began = 0
        self.files: set[str] = set()

    def analyse(self) -> Outcome:
        """Analyse the target as it is now."""
        self._forget_modules()
        self._began = time.time_ns()
        outcome = perform(self._job, self._timeout)
        self.files |= outcome.sources.keys() | imported(self._job)
        return outcome

    def wait(self, tell_missing: Callable[[list[str]], None] = lambda names: None) -> list[str]:
        """Wait until files are saved, and return their names.

        Args:
            tell_missing: is told of files that went missing meanwhile; not of those that an editor
                replaces, which are back at once.
        """
        collect()  # now, while nobody waits for an answer
        told = before = self._missing()
        while not self._saved():
            time.sleep(_POLL_SECONDS)
            missing = self._missing()
            if missing == before and missing - told:
                tell_missing(sorted(missing - told))
                told = missing
            before = missing
        time.sleep(_SETTLE_SECONDS)
        return self._saved()

    def _saved(self) -> list[str]:
        return [name for name in sorted(self.files) if _changed(self._path(name)) > self._began]

    def _missing(self) -> set[str]:
        return {name for name in self.files if not self._path(name).exists()}

    def _forget_modules(self) -> None:
        files = {str(self._path(name)) for name in self.files}
        for name in sys.modules.keys() - self._kept:
            if getattr(sys.modules[name], "__file__", None) in files:
                del sys.modules[name]

    def _path(self, name: str) -> Path:
        return self._job.root / name


def _changed(path: Path) -> int:
    """When a file's content or place last changed; 0 if there is no such file."""
    try:
        return path.stat().st_ctime_ns
    except OSError:
        return 0
