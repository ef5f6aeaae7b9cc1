"""Data loaders with worker processes, in a script and in a step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome

Run = Callable[..., Outcome]

SCRIPT = """\
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def build(workers="2"):
    data = TensorDataset(torch.randn(64, 16), torch.randn(64, 4))
    batches = iter(DataLoader(data, batch_size=8, num_workers=int(workers)))
    model = nn.Linear(16, 4).cuda()

    def step():
        x, y = next(batches)
        nn.functional.mse_loss(model(x.cuda()), y.cuda()).backward()
        model.zero_grad()

    import graphmem
    return graphmem.TrainingStep(model=model, step=step)


if __name__ == "__main__":
    step = build(sys.argv[1]).step
    for _ in range(3):
        step()
"""


@pytest.mark.parametrize("command", ["analyze", "run"])
def test_workers_read_for_a_step_or_a_script(
    command: str, tmp_path: Path, run_graphmem: Run
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    script = f"{tmp_path}/train.py"

    def report(workers: str) -> str:
        settings = ("--set", f"workers={workers}")
        run = (script, workers) if command == "run" else (f"{script}:build", *settings)
        outcome = run_graphmem(command, "--gpu", "t4", *run)
        assert outcome.exit_code == 0, outcome.stderr
        said: str = outcome.stdout + outcome.stderr
        return said.replace(f"workers={workers}", "workers=N")  # in a suggested command

    with_workers = report("2")

    assert "3 steps" in with_workers
    assert with_workers == report("0")
