"""The report on a pull request that removes checkpointing: the true cause first, every byte."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from graphmem.gate.compare import Cause, TargetVerdict
from graphmem.gate.formats import messages
from graphmem.gate.lock import Entry
from tests.support.gate_project import Project, Run

NET = """\
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.act = nn.ReLU()
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


class Net(nn.Module):
    def __init__(self, layers=6, width=256):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, 512)

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


def build():
    return Net(), torch.randn(4096, 256)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A repository whose working tree removes checkpointing."""
    project = Project.create(tmp_path_factory.mktemp("causes") / "project", net__py=NET)
    project.write("graphmem.toml", '[targets.net]\ntarget = "net.py:build"\n')
    project.graphmem("check", "--update")
    project.commit("baseline")
    project.edit("net.py", "checkpoint(block, x, use_reentrant=False)", "block(x)")
    project.edit("net.py", "512", "768")
    return project


@pytest.fixture(scope="module")
def found(project: Project) -> Run:
    return project.graphmem("check", "--format", "json")


def test_the_layers_are_one_cause_and_the_first(found: Run) -> None:
    """Each layer saves ReLU's result for `down`, 4096 x 1024 floats.

    With checkpointing the last layer did so at the peak too, when its block was recomputed.
    """
    assert found.exit_code == 1
    first = found.json()["results"][0]["verdict"]["causes"][0]

    assert (first["category"], first["module"]) == ("activation", "blocks.[0-4].act")
    assert (first["before"], first["after"]) == (0, 4 * 4096 * 1024)
    assert first["layers"] == 5


def test_the_cause_says_that_nothing_was_saved_before(project: Project) -> None:
    """Also in the annotation of a pull request, on the line that saves it."""
    said = "in each of 5; not saved before: was checkpointing removed?"

    assert said in project.graphmem("check").stdout
    annotation = project.graphmem("check", "--format", "github").stdout
    assert said in annotation
    assert annotation.startswith("::error file=net.py,line=14,")


def test_every_byte_of_the_change_is_accounted_for(found: Run) -> None:
    verdict = found.json()["results"][0]["verdict"]
    change = verdict["after"]["allocated"] - verdict["before"]["allocated"]
    causes = verdict["causes"]

    listed = sum((each["after"] - each["before"]) * each["layers"] for each in causes)
    assert change == listed + verdict["rest"]


def test_unlisted_bytes_have_a_line_to_themselves() -> None:
    entry = Entry(
        gpu="h100", torch="2.13.0", allocated=0, reserved=0, phases={}, categories={}, modules={}
    )
    cause = Cause("activation", "h.[0-3]", 512, 1536, 4, None, "saved")
    result: Any = SimpleNamespace(verdict=TargetVerdict(entry, entry, [], [cause], rest=-2048))

    assert messages.causes(result)[-1] == "-2.0 KiB everything else together"


def test_no_derivative_formula_is_in_the_way(project: Project) -> None:
    markdown = project.graphmem("check", "--format", "markdown").stdout

    assert "grad" not in markdown.partition("activation in")[2].splitlines()[0]


def test_a_shallow_clone_gets_a_hint_what_to_fetch(project: Project, tmp_path: Path) -> None:
    project.git("clone", "--quiet", "--depth", "1", f"file://{project.root}", str(tmp_path / "c"))

    done = Project(tmp_path / "c").graphmem("check", "--since", "origin/nowhere")

    assert done.exit_code == 2
    assert "fetch-depth: 0 of actions/checkout" in done.stderr
