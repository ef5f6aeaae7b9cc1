"""Data loaders with worker processes, in a script and in a step."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from graphmem.virtual_device.stand_ins.flash_attn import STAND_IN
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


def test_a_transform_of_data_on_the_host_begins_no_iteration(
    tmp_path: Path, run_graphmem: Run
) -> None:
    """torchvision's transforms are modules; trainers that cache latents call them before anything
    trains. Six of them and six encodings would be more than seven forward passes."""
    (tmp_path / "train.py").write_text("""\
import torch
from torch import nn

normalize = nn.Hardtanh()
encoder = nn.Linear(16, 8).cuda()
latents = []
for row in torch.randn(6, 16):
    row = normalize(row)
    with torch.no_grad():
        latents.append(encoder(row.cuda()))
model = nn.Linear(8, 4).cuda()
optimizer = torch.optim.SGD(model.parameters())
for latent in latents:
    model(latent).sum().backward()
    optimizer.step()
    normalize(torch.randn(16))
""")
    run = ("--gpu", "t4", "--max-steps", "7", "--format", "json", f"{tmp_path}/train.py")
    outcome = run_graphmem("run", *run)
    assert outcome.exit_code == 0, outcome.stderr
    steps = json.loads(outcome.stderr)["steps"]

    names = [[phase["name"] for phase in step["phases"]] for step in steps]
    assert names == [["forward", "backward", "optimizer"]] * 6


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


WITH_STAND_IN = """\
import sys
from importlib.metadata import version
import torch
from flash_attn import flash_attn_func
from torch.utils.data import DataLoader


def collate(rows):
    return f"flash_attn {version('flash_attn')}, a card: {torch.cuda.is_available()}"


if __name__ == "__main__":
    options = dict(num_workers=1, multiprocessing_context=sys.argv[1])
    print(*DataLoader([1, 2], batch_size=2, collate_fn=collate, **options))
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_import_the_script_anew_have_its_stand_ins(
    method: str, tmp_path: Path
) -> None:
    """They have no card, as the other workers of a data loader need none.

    In a process of its own, since a process has one fork server.
    """
    (tmp_path / "train.py").write_text(WITH_STAND_IN)
    command = (sys.executable, "-m", "graphmem", "run", "--stand-in", "flash_attn")

    outcome = subprocess.run(
        [*command, "train.py", method], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert outcome.stdout == f"flash_attn {STAND_IN.version}, a card: {torch.cuda.is_available()}\n"


OF_MODULES = """\
import torch
from torch import nn
from torch.utils.data import DataLoader


class Transformed(torch.utils.data.Dataset):
    def __init__(self):
        self.transform = nn.Flatten(0)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.transform(torch.ones(4, 4))


model = nn.Linear(16, 4).cuda()
optimizer = torch.optim.SGD(model.parameters())
for epoch in range(2):
    for x in DataLoader(Transformed(), batch_size=8, num_workers=1):
        model(x.cuda()).sum().backward()
        optimizer.step()
    print("epoch", epoch)
"""


@pytest.mark.slow
def test_modules_that_a_worker_calls_are_no_steps(tmp_path: Path) -> None:
    """As torchvision's transforms: the worker of the second epoch was stopped by --max-steps.

    In a process of its own, since a worker prints to its standard error.
    """
    (tmp_path / "train.py").write_text(OF_MODULES)
    command = (sys.executable, "-m", "graphmem", "run", "--max-steps", "1", "train.py")

    outcome = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (outcome.returncode, outcome.stdout) == (0, "epoch 0\n"), outcome.stderr
    assert "graphmem: stopped by --max-steps" in outcome.stderr
    assert "Traceback" not in outcome.stderr
