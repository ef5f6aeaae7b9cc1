"""The place in the code that a result refers to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from graphmem.gate.check import Result
from graphmem.gate.config import FILE


def place_of(result: Result) -> tuple[str, int]:
    """File and line of what failed, or of the first cause, in the project; else of the target.

    A package's file is written from its package on, and is not in the project.
    """
    for source in _sources(result):
        file, _, line = (source or "").rpartition(":")
        if line.isdigit() and not file.startswith("/") and Path(file).is_file():
            return file, int(line)
    location = result.target.rpartition(":")[0] or result.target
    return (location, 1) if location.endswith((".py", ".pt2")) else (FILE, 1)


def _sources(result: Result) -> Iterator[str | None]:
    if result.failure is not None:
        yield result.failure.source
    if result.verdict is not None:
        yield from (cause.source for cause in result.verdict.causes)
