"""Run PyTorch's own test/test_cuda.py against the virtual GPU.

    python tools/run_test_cuda.py path/to/test_cuda.py [--gpu NAME] [--all] [-k TEXT]

The file is PyTorch's, not part of graphmem. Get that of the installed version from
https://github.com/pytorch/pytorch (test/test_cuda.py of the tag v2.13.0), or that of another
version from any PyTorch source archive; `torch.testing`, which it needs, comes with torch.

Without `--all`, only tests about memory run: those whose names have a word of MEMORY_WORDS. Each
test has its own virtual GPU and environment variables. It prints one line per test and how many
passed; docs/cuda_api.md says why the others do not.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import signal
import sys
import unittest
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Annotated, Any
from unittest import mock

import typer

MEMORY_WORDS = (
    "alloc",
    "blas_workspace",
    "blas_handle",
    "caching",
    "cycles",
    "expandable",
    "garbage",
    "host_memory",
    "leak",
    "mempool",
    "memory",
    "oom",
    "pinned",
    "record_stream",
    "snapshot",
)
_SECONDS = 120
_WHERE = "https://github.com/pytorch/pytorch/blob/v2.13.0/test/test_cuda.py"


class _TooLongError(Exception):
    """A test did not finish in time."""


def main(
    file: Annotated[Path, typer.Argument(help="PyTorch's test/test_cuda.py.")],
    gpu: Annotated[str, typer.Option(help="The card to simulate.")] = "a100-80gb",
    every: Annotated[bool, typer.Option("--all", help="Run all tests of the file.")] = False,
    text: Annotated[str, typer.Option("-k", help="Only tests whose names contain this.")] = "",
) -> None:
    """Run the tests, one line each, and count."""
    if not file.exists():
        typer.echo(f"error: {file} is not there\nhint: download {_WHERE}", err=True)
        raise typer.Exit(2)
    counts: Counter[str] = Counter()
    for test in _tests(_imported(file, gpu)):
        name = f"{type(test).__name__}.{test._testMethodName}"
        if text in name and (every or _asks_about_memory(test._testMethodName)):
            outcome, reason = _run(test, gpu)
            counts[outcome] += 1
            typer.echo(f"{outcome:7} {name}{'  ' if reason else ''}{reason}")
    typer.echo(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    raise typer.Exit(int(bool(counts["failed"])))


def _asks_about_memory(name: str) -> bool:
    return any(word in name.lower() for word in MEMORY_WORDS)


def _imported(file: Path, gpu: str) -> ModuleType:
    """Import the tests, which look for CUDA at import."""
    from graphmem.live.gpu import VirtualGpu

    sys.argv = [str(file)]
    sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    with VirtualGpu(gpu):
        spec.loader.exec_module(module)
    return module


def _tests(module: ModuleType) -> Iterator[Any]:
    loader = unittest.TestLoader()
    for value in list(vars(module).values()):
        is_case = isinstance(value, type) and issubclass(value, unittest.TestCase)
        if is_case and value.__module__ == module.__name__:
            yield from loader.loadTestsFromTestCase(value)


def _run(test: Any, gpu: str) -> tuple[str, str]:
    from graphmem.live.gpu import VirtualGpu

    result = unittest.TestResult()
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        mock.patch.dict(os.environ),
        VirtualGpu(gpu),
        _limited(),
    ):
        test.run(result)
    if result.skipped:
        return "skipped", result.skipped[0][1]
    for _, trace in result.failures + result.errors:
        return "failed", _last_line(trace)
    return "passed", ""


def _last_line(trace: str) -> str:
    lines = [line for line in trace.splitlines() if line and not line.startswith(" ")]
    told = [line for line in lines if "Error" in line or "Exit" in line]
    return (told or lines)[-1][:160]


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise _TooLongError(f"more than {_SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


if __name__ == "__main__":
    typer.run(main)
