"""A newcomer in an empty environment follows docs/tutorials/start.md."""

from __future__ import annotations

import os
import subprocess
import venv
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.support.packaging import copied_sources
from tools.tutorials import FOLDER, follow, in_shell


@pytest.mark.slow
def test_the_first_answers_come_after_two_commands_and_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / "bin"
    release = torch.__version__.partition("+")[0]
    for package in (f"torch=={release}", copied_sources(tmp_path / "source")):
        subprocess.run([programs / "pip", "install", "--quiet", package], check=True)
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)

    page = (FOLDER / "start.md").read_text()
    analyze, fit, run = follow(page, partial(in_shell, environment=environment))

    assert analyze.output.startswith("does NOT fit on Tesla T4 (14.563 GiB): out of memory\n")
    assert "\nbiggest savings, each measured\n" in analyze.output
    assert "\nthe largest batch that fits on Tesla T4: " in fit.output
    assert "fits on Tesla T4 (14.563 GiB): " in run.output
