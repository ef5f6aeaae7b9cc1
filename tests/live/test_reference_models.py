"""Which calls without gradients are part of a forward pass, and which are evaluations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Outcome

BEGIN = """
import torch
from torch import nn

student, other = nn.Linear(4, 4).cuda(), nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(student.parameters(), 0.1)
for _ in range(2):
    x, total = torch.randn(2, 4, device="cuda"), torch.zeros((), device="cuda")
"""
END = """
    loss.backward()
    optimizer.step()
"""
OF_A_STEP = ["forward", "backward", "optimizer"]

TEACHER = """
    with torch.no_grad():
        wanted = other(x)
    loss = (student(x) - wanted).sum()
"""
LATENTS = """
    with torch.no_grad():
        latents = 0.18 * other(x)
    loss = student(latents + torch.randn_like(latents)).sum()
"""
ADAPTER_OFF = """
    y = student(x)
    with torch.no_grad():
        wanted = student(x)
    loss = (y - wanted).sum()
"""
AVERAGE = """
    with torch.no_grad():
        for batch in x.split(1):
            total += other(batch).sum()
    x = torch.randn(2, 4, device="cuda")
    loss = student(x).sum()
"""
SAMPLED = """
    with torch.no_grad():
        sampled = student(x)
    loss = student(sampled).sum()
"""
VALIDATED = """
    loss = student(x).sum()
    with torch.no_grad():
        student.eval()(x)
    student.train()
"""
FORGOTTEN = """
    student.train()
    loss = student(x).sum()
    loss.backward()
    optimizer.step()
    student.eval()
    wanted = [student(x).sum() for _ in range(3)]
    student(x).sum().backward()
    optimizer.zero_grad()
    student.train()
    loss = student(x).sum()
"""
REENTRANT = """
    x.requires_grad_()
    loss = torch.utils.checkpoint.checkpoint(student, x, use_reentrant=True).sum()
"""


@pytest.fixture
def phases_of(run_graphmem: Callable[..., Outcome], tmp_path: Path) -> Callable[[str], Any]:
    """Run a script, and give the names of the phases of each step."""

    def run(body: str) -> Any:
        script, output = tmp_path / "train.py", tmp_path / "report.json"
        script.write_text(BEGIN + body + END)
        done = run_graphmem("run", "--format", "json", "-o", str(output), str(script))
        assert done.exit_code == 0, done.stderr
        steps = json.loads(output.read_text())["steps"]
        return [[phase["name"] for phase in step["phases"]] for step in steps]

    return run


@pytest.mark.parametrize("body", [TEACHER, LATENTS, ADAPTER_OFF, REENTRANT])
def test_what_a_loss_depends_on_is_part_of_its_forward_pass(
    phases_of: Callable[[str], Any], body: str
) -> None:
    assert phases_of(body) == [OF_A_STEP] * 2


@pytest.mark.parametrize("body", [AVERAGE, SAMPLED])
def test_what_it_does_not_depend_on_and_samples_are_evaluations(
    phases_of: Callable[[str], Any], body: str
) -> None:
    """The first comes before any step, and each other one ends the step before it."""
    assert phases_of(body) == [[*OF_A_STEP, "evaluation"], OF_A_STEP]


def test_a_validation_between_a_loss_and_its_backward_pass_is_an_evaluation(
    phases_of: Callable[[str], Any],
) -> None:
    assert phases_of(VALIDATED) == [["forward", "evaluation", "backward", "optimizer"]] * 2


def test_a_forward_pass_begins_with_its_teacher(
    run_graphmem: Callable[..., Outcome], tmp_path: Path
) -> None:
    """Two weights of 16 x 16 numbers are there then, and four tensors of less than 512 bytes."""
    script, output = tmp_path / "train.py", tmp_path / "report.json"
    script.write_text(BEGIN.replace("4, 4", "16, 16").replace("2, 4", "2, 16") + TEACHER + END)
    run_graphmem("run", "--format", "json", "-o", str(output), str(script))

    first = json.loads(output.read_text())["steps"][0]["phases"][0]
    assert first["start"] == 2 * 1024 + 4 * 512


def test_an_evaluation_that_forgets_no_grad_is_one_up_to_what_is_differentiated(
    phases_of: Callable[[str], Any],
) -> None:
    """The last call in evaluation mode is a forward pass: a backward pass follows it."""
    with_passes = ["forward", "backward", "forward", "backward", "optimizer"]
    assert phases_of(FORGOTTEN) == [[*OF_A_STEP, "evaluation"], with_passes] * 2
