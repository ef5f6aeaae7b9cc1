"""Micro-batches of one iteration: what runs between two of them belongs to the forward pass."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

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


SAMPLED = TRAINING.replace(
    "        loss =",
    "        with torch.no_grad():\n            model(total.new_zeros(8, 256))\n        loss =",
)
"""As a generator draws what its critic sees in each of several micro-batches."""


@pytest.mark.parametrize(
    ("program", "between"),
    [(TRAINING, []), (SAMPLED, ["evaluation"])],
    ids=["batches", "samples"],
)
def test_only_the_last_backward_pass_precedes_the_optimizer(
    run_graphmem: Callable[..., Outcome], tmp_path: Path, program: str, between: list[str]
) -> None:
    (tmp_path / "train.py").write_text(program)
    output = tmp_path / "report.json"
    run_graphmem(
        "run", "--gpu", "t4", "--format", "json", "-o", str(output), str(tmp_path / "train.py")
    )

    report = json.loads(output.read_text())
    phases = [[phase["name"] for phase in step["phases"]] for step in report["steps"]]
    passes = ["forward", "backward", *[*between, "forward", "backward"] * 2, "optimizer"]
    assert phases == [passes + between, passes]


def test_of_many_passes_the_text_shows_the_first_the_highest_and_the_last(
    run_graphmem: Callable[..., Outcome], tmp_path: Path
) -> None:
    """The fifth of twelve batches has the most rows, and so the highest peak."""
    batches = "for rows in [8] * 4 + [16_384] + [8] * 7"
    program = TRAINING.replace("for batch in range(3)", batches).replace("(8,", "(rows,")
    (tmp_path / "train.py").write_text(program)
    done = run_graphmem("run", "--gpu", "t4", str(tmp_path / "train.py"))

    table = done.stderr.partition("step  phase")[2].partition("\n\n")[0].splitlines()[1:]
    steps = [(line[:6].strip(), line[6:].split()[0]) for line in table]
    passes = ["forward", "backward"]
    one = [*passes, *passes, "…", "backward", "…", "backward", *passes, "optimizer"]
    assert [name for _, name in steps] == one * 2
    assert [number for number, _ in steps if number] == ["0", "1"]
