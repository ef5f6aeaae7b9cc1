"""`graphmem verify --suite` with environments of other releases of torch.

The environments here are of the installed release, under another one's name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from graphmem.torch_releases import installed_release
from graphmem.torch_releases.manifest import written
from tests.conftest import Outcome
from tests.support.places import FIXTURES

Run = Callable[..., Outcome]
CASE = f"""\
source = "pytorch/pytorch issue 74443, the first of its two shapes"
target = "{FIXTURES}/printed_small.py:build_two_linears"
gpu = "v100"
torch = "2.8"
env = {{ CUBLAS_WORKSPACE_CONFIG = ":0:0", CUBLASLT_WORKSPACE_SIZE = "0" }}
printed = [{{ figure = "allocated after step 0 forward", value = "16777728" }}]
"""


@pytest.fixture
def suite(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "cases").mkdir()
    (tmp_path / "cases" / "linears.toml").write_text(CASE)
    folders = ("--cases", tmp_path / "cases", "--environments", tmp_path)
    return ("verify", "--suite", "--jobs", "1", *map(str, folders))


def make_environment(folder: Path, release: str, then: str) -> None:
    python = folder / f".venv-torch-{release}" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{then}\n")
    python.chmod(0o755)


def test_a_case_is_traced_in_the_environment_of_its_release(
    suite: tuple[str, ...], tmp_path: Path, run_graphmem: Run
) -> None:
    used = tmp_path / "used"
    make_environment(tmp_path, "2.8.1", f'touch {used}\nexec {sys.executable} "$@"')

    outcome = run_graphmem(*suite)

    assert outcome.exit_code == 0
    assert used.exists()
    assert "16,777,728" in outcome.stdout


def test_the_installed_release_traces_the_cases_of_others(
    suite: tuple[str, ...], tmp_path: Path, run_graphmem: Run
) -> None:
    make_environment(tmp_path, "2.7.0", "exit 1")

    outcome = run_graphmem(*suite)

    assert outcome.exit_code == 0
    of_installed = f"traced by torch {written(installed_release())}, the release of 0 of 1 cases"
    assert of_installed in outcome.stdout


def test_the_error_of_a_broken_environment_is_one_line(
    suite: tuple[str, ...], tmp_path: Path, run_graphmem: Run
) -> None:
    make_environment(tmp_path, "2.8.0", "echo 'No module named graphmem' >&2; exit 1")

    outcome = run_graphmem(*suite)

    assert outcome.exit_code == 2
    assert "case linears:" in outcome.stderr
    assert "failed: No module named graphmem" in outcome.stderr
    assert "Traceback" not in outcome.stderr
