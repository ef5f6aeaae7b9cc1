"""Micro-batches of one iteration: what runs between two of them belongs to the forward pass."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.conftest import Outcome

TRAINING = """import torch
model = torch.nn.Linear(256, 256, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), 0.1)
total = torch.zeros((), device="cuda")
for step in range(2):
    for batch in range(3):
        loss = model(torch.zeros(8, 256, device="cuda")).sum()
        loss.backward()
        total += loss.detach()
    optimizer.step()
    total.zero_()
"""


def test_only_the_last_backward_pass_precedes_the_optimizer(
    run_graphmem: Callable[..., Outcome], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    output = tmp_path / "report.json"
    run_graphmem(
        "run", "--gpu", "t4", "--format", "json", "-o", str(output), str(tmp_path / "train.py")
    )

    report = json.loads(output.read_text())
    phases = [[phase["name"] for phase in step["phases"]] for step in report["steps"]]
    assert phases == [["forward", "backward"] * 3 + ["optimizer"]] * 2
