"""Code under analysis that ends its process, crashes it, or never ends."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from graphmem.cli import main
from tests.support.gate_project import Project

MODEL = """\
import ctypes, os, torch


def build(what: str = ""):
    if what == "leaves with 0":
        os._exit(0)
    if what == "crashes":
        ctypes.string_at(0)
    if what == "is stuck in native code":
        ctypes.PyDLL(None).sleep(1000)
    while what == "loops":
        try:
            pass
        except Exception:
            pass
    return torch.nn.Linear(4, 4), torch.zeros(2, 4)
"""
LOOP = range(11, 16)
"""The lines of the endless loop."""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project.create(tmp_path / "project", model__py=MODEL)


def _line_of(text: str) -> int:
    (line,) = (number for number, each in enumerate(MODEL.splitlines(), 1) if text in each)
    return line


def _messages(project: Project, *names: str, options: tuple[str, ...] = ()) -> dict[str, str]:
    """`check`'s messages about faulty targets."""
    tables = [
        f'[targets."{each}"]\ntarget = "model.py"\nset = {{ what = "{each}" }}\n' for each in names
    ]
    project.write("graphmem.toml", "".join(tables))
    run = project.graphmem("check", "--format", "json", *options)
    assert run.exit_code == 2
    return {each["name"]: each["failure"]["message"] for each in run.json()["results"]}


def test_check_says_how_a_target_ended_its_process(project: Project) -> None:
    """tests/gate/test_check.py has one that ends with another status."""
    messages = _messages(project, "leaves with 0", "crashes")

    assert messages == {
        "leaves with 0": "the code under analysis ended its process with exit status 0",
        "crashes": f"native code crashed at model.py:{_line_of('string_at')} (SIGSEGV)",
    }


@pytest.mark.slow
def test_check_kills_each_target_that_takes_too_long(project: Project) -> None:
    """The first stops at an exception; the second never returns to Python, and is killed."""
    messages = _messages(
        project, "loops", "is stuck in native code", options=("--timeout", "10", "--jobs", "2")
    )

    assert messages["loops"] in [f"not finished after 10 s, at model.py:{each}" for each in LOOP]
    line = _line_of("sleep")
    assert messages["is stuck in native code"] == f"not finished after 10 s, at model.py:{line}"


def test_a_time_limit_on_a_cluster_is_rejected(project: Project) -> None:
    run = project.graphmem("check", "--timeout", "9", "--dask", "tcp://nowhere:1")
    assert run.exit_code == 2
    assert "--timeout ends processes of this machine" in run.stderr


@pytest.mark.parametrize("command", ["analyze", "run"])
def test_an_endless_program_is_stopped_at_its_line(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A module of the name `model` may be another test's."""
    monkeypatch.chdir(tmp_path)
    Path("endless.py").write_text(MODEL)
    Path("train.py").write_text("import endless\nendless.build('loops')\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert main(["analyze", "endless.py", "--steps", "1"]) == 0  # imports are done

    target = ["endless.py", "--set", "what=loops"] if command == "analyze" else ["train.py"]
    exit_code = main([command, "--timeout", "2", *target])

    said = capsys.readouterr().err
    assert exit_code == 2
    assert any(f"error: not finished after 2 s, at endless.py:{line}\n" in said for line in LOOP)
