"""Fixtures and settings for all tests."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import settings

from graphmem.cli import main

# Two workers of pytest-xdist share two cores; read when torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A test neither reads nor fills the cache of who runs it.
os.environ["GRAPHMEM_CACHE"] = ""

# Reports are as wide as without a terminal.
os.environ.pop("COLUMNS", None)

# A shared machine is too uneven for deadlines; CI must not fail by chance.
settings.register_profile("graphmem", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("graphmem")


def pytest_collection_finish() -> None:
    """Exclude what the tests imported from the objects graphmem scans before a trace.

    It notes every model and tensor of its caller, and scans all objects of the process for them;
    the million that torch, transformers and pytest have made by now hold none.
    """
    import torch

    import graphmem
    from graphmem.caller import belongings

    # imports everything it needs
    graphmem.analyze(lambda: (torch.nn.Linear(1, 1), torch.ones(1, 1)))
    _set_aside()
    belongings._all_objects = gc.get_objects


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Exclude what earlier tests have left, too: every later trace would scan it."""
    _set_aside()


def _set_aside() -> None:
    gc.collect()
    gc.freeze()


@dataclass(frozen=True)
class Outcome:
    """The result of a command line."""

    exit_code: int
    stdout: str
    stderr: str


@pytest.fixture
def run_graphmem(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Call `graphmem ARGUMENTS…` in this process."""

    def run(*arguments: str) -> Outcome:
        capsys.readouterr()
        exit_code = main(arguments)
        captured = capsys.readouterr()
        return Outcome(exit_code, captured.out, captured.err)

    return run
