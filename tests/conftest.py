"""Fixtures and settings for all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

from graphmem.cli import main

# Two workers of pytest-xdist share two cores; read when torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A test neither reads nor fills the cache of who runs it.
os.environ["GRAPHMEM_CACHE"] = ""

# Reports are as wide as without a terminal.
os.environ.pop("COLUMNS", None)

_frozen: list[int] = []
"""How many objects each test has set aside; Python counts them anew, one by one."""

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
    from graphmem.live import collector_pace

    # imports everything it needs
    graphmem.analyze(lambda: (torch.nn.Linear(1, 1), torch.ones(1, 1)))
    _set_aside()
    belongings._all_objects = gc.get_objects
    collector_pace._old_objects = lambda: len(gc.get_objects()) + sum(_frozen)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Exclude what earlier tests have left, too: every later trace would scan it."""
    _set_aside()


def _set_aside() -> None:
    gc.collect()
    _frozen.append(len(gc.get_objects()))
    gc.freeze()


@dataclass(frozen=True)
class Outcome:
    """The result of a command line."""

    exit_code: int
    stdout: str
    stderr: str


@pytest.fixture
def run_graphmem(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Callable[..., Outcome]]:
    """Call `graphmem ARGUMENTS…` in this process, and forget the test's own modules at the end."""

    def run(*arguments: str) -> Outcome:
        capsys.readouterr()
        exit_code = main(arguments)
        captured = capsys.readouterr()
        return Outcome(exit_code, captured.out, captured.err)

    yield run
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(f"{tmp_path}{os.sep}"):
            del sys.modules[name]


@pytest.fixture
def hang_ups() -> Iterator[None]:
    """Have SIGHUP end the process, also where the tests run under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def make_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str, str], None]]:
    """Write a module of a library, by its dotted name; imports find it first, until the end."""
    libraries: set[str] = set()

    def make(name: str, source: str) -> None:
        library, *inner = name.split(".")
        folder = tmp_path
        for package in (library, *inner[:-1]):
            folder /= package
            folder.mkdir(exist_ok=True)
            (folder / "__init__.py").touch()
        (folder / f"{inner[-1]}.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        for each in _modules_of(library):
            monkeypatch.delitem(sys.modules, each)
        libraries.add(library)

    yield make
    for library in libraries:
        for each in _modules_of(library):
            del sys.modules[each]


def _modules_of(library: str) -> list[str]:
    return [each for each in sys.modules if each.partition(".")[0] == library]
