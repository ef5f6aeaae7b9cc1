"""A command leaves the process that calls it as it was (`graphmem/own_process.py`)."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from graphmem.own_process import is_own_process
from tests.support.places import ROOT


def test_a_command_leaves_collector_and_environment_alone(
    run_graphmem: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)

    run_graphmem("gpus")

    assert gc.isenabled()
    assert "OMP_WAIT_POLICY" not in os.environ
    assert not is_own_process()


TWO_ANALYSES = """\
import gc

import torch

import graphmem
from graphmem.own_process import own_process

model, kept = torch.nn.Linear(8, 8), torch.ones(8)
weight = model.weight.tolist()


def build():
    model.weight.data.zero_()
    kept.zero_()
    return model, kept


with own_process():
    peaks = [graphmem.analyze(build).peak.allocated for _ in range(2)]
    assert gc.get_freeze_count() > 100_000, gc.get_freeze_count()
assert peaks[0] == peaks[1], peaks
assert model.weight.tolist() == weight and kept.tolist() == [1.0] * 8
assert model.weight.device.type == "cpu" and model.weight.grad is None
"""


@pytest.mark.slow
def test_what_is_there_before_the_first_analysis_is_put_back_but_not_collected() -> None:
    """Collections between analyses would visit every object of PyTorch's modules."""
    run = subprocess.run(
        [sys.executable, "-c", TWO_ANALYSES], capture_output=True, text=True, check=False
    )

    assert run.returncode == 0, run.stderr


SCRIPT = """\
import gc

import torch

assert gc.isenabled() and len(gc.get_objects()) < 100_000, len(gc.get_objects())
ended = []


class Cycle:
    def __init__(self):
        self.own, self.memory = self, torch.ones(1 << 20, device="cuda")

    def __del__(self):
        ended.append(1)


Cycle()
assert gc.collect() and ended == [1] and torch.cuda.memory_allocated() == 0
left = open("left.txt", "w")
left.write("kept as well")
"""


def test_a_script_has_the_collector_for_what_it_makes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing older than the script is visited; what it leaves open is written as ever."""
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text(SCRIPT)

    run = subprocess.run(
        [sys.executable, "-m", "graphmem", "run", "script.py"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )

    assert run.returncode == 0, run.stderr
    assert Path("left.txt").read_text() == "kept as well"
