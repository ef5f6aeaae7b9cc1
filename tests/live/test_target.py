"""`graphmem run model.py:build`: what a target returns, trained as by a script."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome

MODEL = """
import torch

def build():
    model = torch.nn.Linear(256, 256, bias=False)
    {compiled}
    return model, torch.randn(128, 256)
"""
WEIGHT = 256 * 256 * 4


def target(folder: Path, compiled: str = "") -> str:
    (folder / "model.py").write_text(MODEL.format(compiled=compiled))
    return f"{folder / 'model.py'}:build"


def test_a_target_is_trained_for_three_steps(
    run_graphmem: Callable[..., Outcome], tmp_path: Path
) -> None:
    """By AdamW, whose two averages stay."""
    done = run_graphmem("run", "--gpu", "a100-80gb", target(tmp_path))

    steps = [line.split()[0] for line in done.stderr.splitlines() if " forward " in line[:20]]
    assert done.exit_code == 0, done.stderr
    assert [each for each in steps if each.isdecimal()] == ["0", "1", "2"]
    assert f"{WEIGHT:,}" in done.stderr
    assert f"{2 * WEIGHT:,}" in done.stderr


def test_its_compiled_code_is_captured(
    run_graphmem: Callable[..., Outcome], tmp_path: Path
) -> None:
    pytest.importorskip("triton")
    compiled = "model = torch.compile(model, mode='reduce-overhead')"

    done = run_graphmem("run", "--gpu", "a100-80gb", target(tmp_path, compiled))

    assert done.exit_code == 0, done.stderr
    assert "CUDA graph" not in done.stderr


def test_it_takes_no_arguments(run_graphmem: Callable[..., Outcome], tmp_path: Path) -> None:
    done = run_graphmem("run", target(tmp_path), "--batch", "4")

    assert done.exit_code == 2
    assert "takes no arguments, and --batch follows it" in done.stderr
