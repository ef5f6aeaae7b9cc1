"""A part of the benchmark: a table whose rows appear as they are measured."""

from __future__ import annotations

import gc
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
GPU = "A100"


@dataclass(frozen=True)
class Row:
    """A line of a table, and the figures behind it, for `--json`."""

    cells: tuple[str, ...]
    figures: dict[str, Any]


@dataclass(frozen=True)
class Part:
    """A table.

    Attributes:
        columns: its headings; the first `texts` are left-aligned.
        rows: measures row after row, each of N times.
    """

    columns: tuple[str, ...]
    rows: Callable[[int], Iterator[Row]]
    texts: int = 1


@contextmanager
def without_collector() -> Iterator[None]:
    """Pause Python's collector, which would slow down the bare run and flatter the ratio."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def seconds_of(run: Callable[[], Any]) -> tuple[float, Any]:
    """The CPU seconds of a call, and what it returns."""
    with without_collector():
        start = time.process_time()
        result = run()
        return time.process_time() - start, result


def spread(ratios: Sequence[float]) -> tuple[str, str, str]:
    """The least, the median and the most of the pairs' ratios."""
    return (f"{min(ratios):.2f}", f"{statistics.median(ratios):.2f}", f"{max(ratios):.2f}")


def ratios_of(these: Sequence[float], those: Sequence[float]) -> list[float]:
    """What each run takes as a multiple of the run that it was paired with."""
    return [this / that for this, that in zip(these, those, strict=True)]


def machine() -> str:
    """What the figures were measured on."""
    return f"{_processor()}, Python {platform.python_version()}, torch {torch.__version__}"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
