"""Find the targets that a change can affect, for `--since`.

Clauses:
  (1) a change of the configuration, the baseline or the requirements affects every target;
  (2) any other file affects the targets whose cached analyses have read it, and those whose source
      imports it, directly or not.

Not covered: data files and computed imports of a target that has not been analysed on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from modulefinder import ModuleFinder
from pathlib import Path, PurePath

from graphmem.gate.jobs import Job

_FOR_ALL = ("graphmem.toml", "graphmem.lock", "pyproject.toml", "uv.lock", "poetry.lock")


def affected_jobs(
    jobs: Iterable[Job],
    changed: frozenset[str],
    known_sources: Callable[[Job], frozenset[str]],
) -> list[Job]:
    """The jobs that a change to these files can affect."""
    if any(_concerns_all(name) for name in changed):
        return list(jobs)
    return [job for job in jobs if changed & (known_sources(job) | imported(job))]


def _concerns_all(name: str) -> bool:
    path = PurePath(name)
    return name in _FOR_ALL or (path.name.startswith("requirements") and path.suffix == ".txt")


def imported(job: Job) -> frozenset[str]:
    """The target's file and the project's files that it imports, directly or not."""
    place, _, _ = job.target.rpartition(":")
    script = job.root / (place or job.target)
    if script.suffix != ".py":
        module = job.root.joinpath(*(place or job.target).split("."))
        script = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
    if not script.is_file():
        return frozenset({str(place or job.target)})
    finder = ModuleFinder(path=[str(script.parent), str(job.root)])
    try:
        finder.run_script(str(script))
    except SyntaxError:
        return frozenset({_relative(script, job.root)})
    loaded = (getattr(module, "__file__", None) for module in finder.modules.values())
    files = [file for file in loaded if isinstance(file, str)]
    return frozenset(_relative(Path(file), job.root) for file in files)


def _relative(path: Path, root: Path) -> str:
    absolute = path.resolve()
    return absolute.relative_to(root).as_posix() if absolute.is_relative_to(root) else str(absolute)
