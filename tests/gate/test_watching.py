"""A target that is reanalysed when its files are saved."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from graphmem.analysis import Request
from graphmem.gate.jobs import Job, Outcome
from graphmem.gate.watching import Watcher
from tests.conftest import Outcome as Run
from tests.support.gate_project import TINY, Project

MODEL = """\
import torch
from sizes import width

def build():
    return torch.nn.Linear(width(), 64), torch.randn(4, width())
"""
SIZES = "def width():\n    return {}\n"


@pytest.fixture
def watcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watcher:
    """Watches a model whose width comes from a module in another folder of the project."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "lib" / "sizes.py").write_text(SIZES.format(64))
    monkeypatch.syspath_prepend(tmp_path / "lib")
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    sys.modules.pop("sizes", None)  # another test's
    return Watcher(Job("model.py", tmp_path, "model.py", Request(steps=1)))


def parameters(outcome: Outcome) -> int:
    assert outcome.report is not None
    return outcome.report.at_peak.by_category["parameter"]


def test_a_module_elsewhere_in_the_project_is_reloaded(watcher: Watcher, tmp_path: Path) -> None:
    before = parameters(watcher.analyse())
    (tmp_path / "lib" / "sizes.py").write_text(SIZES.format(128))

    assert watcher.wait() == ["lib/sizes.py"]
    assert parameters(watcher.analyse()) - before == 64 * 64 * 4


def test_a_save_during_an_analysis_is_not_missed(watcher: Watcher, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        f"import pathlib\npathlib.Path({str(tmp_path / 'lib' / 'sizes.py')!r})"
        f".write_text({SIZES.format(32)!r})\n{MODEL}"
    )
    watcher.analyse()

    assert watcher.wait() == ["lib/sizes.py"]


def test_a_failing_target_is_watched_until_it_is_fixed(watcher: Watcher, tmp_path: Path) -> None:
    (tmp_path / "lib" / "sizes.py").write_text("def width() return 64\n")
    failed = watcher.analyse()
    (tmp_path / "lib" / "sizes.py").write_text(SIZES.format(64))

    assert failed.failure is not None
    assert watcher.wait() == ["lib/sizes.py"]
    assert watcher.analyse().report is not None


def test_a_deleted_file_is_told_once(watcher: Watcher, tmp_path: Path) -> None:
    watcher.analyse()
    model = tmp_path / "model.py"
    threading.Timer(0.3, model.unlink).start()
    threading.Timer(1.5, model.write_text, [MODEL]).start()
    told: list[list[str]] = []

    assert watcher.wait(told.append) == ["model.py"]
    assert told == [["model.py"]]


def test_a_save_prints_what_changed(tmp_path: Path) -> None:
    project = Project.create(tmp_path / "project", tiny__py=TINY)
    process = project.start("watch", "tiny.py", "--steps", "1")
    assert process.stdout is not None
    assert process.stderr is not None
    end = threading.Timer(60, process.kill)
    end.start()

    assert process.stderr.readline() == "watching tiny.py; Ctrl-C ends it\n"
    assert process.stdout.readline().startswith("fits on ")
    project.edit("tiny.py", "randn(4, 64)", "randn(8, 64)")
    seen = [process.stdout.readline() for _ in range(6)]
    process.send_signal(signal.SIGINT)
    process.wait()
    end.cancel()

    assert seen[2] == "\n"
    assert seen[3].endswith(" tiny.py saved\n")
    assert seen[4].startswith("fits on ")
    assert seen[5].startswith("tiny.py: +")
    assert process.returncode == 130


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["missing.py"], "no such file"), ([os.devnull, "--gpu", "h1000"], "unknown GPU")],
)
def test_an_error_that_no_save_can_fix_ends_the_command(
    run_graphmem: Callable[..., Run], arguments: list[str], message: str
) -> None:
    run = run_graphmem("watch", *arguments)

    assert run.exit_code == 2
    assert message in run.stderr
