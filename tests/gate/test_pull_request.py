"""A pull request from start to merge: two branches, six changes, and the comment on each."""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import chdir
from pathlib import Path

import pytest

from graphmem.cli import main
from tests.support.gate_project import TINY, Project
from tests.support.places import ROOT

CONFIG = """\
[defaults]
steps = 2
max_increase = "1%"

[targets.net]
target = "net.py"

[targets.tiny]
target = "tiny.py"
max_allocated = "1 GiB"
"""
NET = """\
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH = 256


class Block(nn.Module):
    def __init__(self, factor=4):
        super().__init__()
        self.up = nn.Linear(WIDTH, factor * WIDTH)
        self.down = nn.Linear(factor * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(6))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def build():
    return Net(), torch.randn(2048, WIDTH)
"""
CHANGES = {
    "checkpointing removed": ("checkpoint(block, x, use_reentrant=False)", "block(x)"),
    "wider": ("factor=4", "factor=6"),
    "another activation": (".relu()", ".sigmoid()"),
    "first block frozen": (
        "range(6))\n",
        "range(6))\n        self.blocks[0].requires_grad_(False)\n",
    ),
    "renamed": ("Block", "Layer"),
    "described": ("import torch\n", "# A small network.\nimport torch\n"),
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A repository with a baseline and git's merge driver."""
    project = Project.create(
        tmp_path_factory.mktemp("pull") / "project",
        graphmem__toml=CONFIG,
        net__py=NET,
        tiny__py=TINY,
    )
    assert check(project, "--update") == (0, "")
    with chdir(project.root):
        assert main(["init", "--merge-driver"]) == 0
    project.commit("baseline")
    return project


def check(project: Project, *arguments: str) -> tuple[int, str]:
    """The exit code of the check, and what it says for a pull request."""
    said = project.root.parent / "comment.md"
    with chdir(project.root):
        exit_code = main(["check", "--format", "markdown", "-o", str(said), *arguments])
    text = said.read_text()
    return exit_code, "" if "--update" in arguments else text


@pytest.fixture(scope="module")
def comments(project: Project) -> dict[str, tuple[int, str]]:
    """The outcome and the comment for each change to the network alone."""
    found = {}
    for name, change in CHANGES.items():
        project.edit("net.py", *change)
        found[name] = check(project)
        project.write("net.py", NET)
    return found


Comments = dict[str, tuple[int, str]]


def causes(comment: str) -> list[str]:
    return [line for line in comment.splitlines() if line.startswith("- ")]


def test_every_change_has_the_right_outcome(comments: Comments) -> None:
    assert {name: exit_code for name, (exit_code, _) in comments.items()} == {
        "checkpointing removed": 1,
        "wider": 1,
        "another activation": 0,
        "first block frozen": 0,
        "renamed": 0,
        "described": 0,
    }


@pytest.mark.parametrize("name", CHANGES)
def test_a_comment_has_a_row_for_each_target(comments: Comments, name: str) -> None:
    exit_code, comment = comments[name]

    rows = re.findall(r"^\| (net|tiny) \| .+ \| (.+) \|$", comment, re.MULTILINE)
    status = "❌ failed" if exit_code else "✅ smaller" if "frozen" in name else "same"
    assert comment.startswith("### GPU memory\n\n2 targets: ")
    assert rows == [("net", status), ("tiny", "same")]
    assert (causes(comment) == []) is (status == "same")


def test_a_comment_says_what_is_left_of_a_budget(comments: Comments) -> None:
    _, comment = comments["wider"]
    header, *rows = [line for line in comment.splitlines() if line.startswith("|")]

    assert header == "| target | baseline | now | change | budget left | |"
    assert re.search(r"^\| net \|.* \| - \| ❌ failed \|$", rows[1])
    tiny = re.search(
        r"^\| tiny \| .+ \| ([\d.]+) (\w+) \| same \| ([\d.]+) MiB \| same \|$", rows[2]
    )
    assert tiny is not None
    now = float(tiny[1]) * {"KiB": 2**-10, "MiB": 1}[tiny[2]]
    assert now + float(tiny[3]) == pytest.approx(1024, abs=0.1)


def test_checkpointing_that_has_gone_is_the_first_cause(comments: Comments) -> None:
    """Blocks 0 to 4 save ReLU's result and their own output; of these, checkpointing keeps the
    output of block 0 alone until block 1 runs backward, where the peak was."""
    first, *_ = causes(comments["checkpointing removed"][1])

    of_relu, of_block = 4 * 2048 * 4 * 256, 4 * 2048 * 256
    added = 5 * (of_relu + of_block) - of_block
    line = 1 + NET.splitlines().index("            x = checkpoint(block, x, use_reentrant=False)")
    assert first == (
        rf"- checkpointing of blocks.\[0-5\] is gone: +{added / 2**20:.1f} MiB activation, called "
        rf"without it at net.py:{line}; {of_block:,} -\> {added + of_block:,} bytes"
    )


def test_wider_layers_are_told_as_what_all_of_them_hold(comments: Comments) -> None:
    found = causes(comments["wider"][1])

    moments = 2 * 4 * 6 * 2 * (2 * 256 * 256)  # of 2 x 256 more rows or columns in six layers
    names = r"blocks.\[0-5\].down, blocks.\[0-5\].up"
    line = f"- +{moments / 2**20:.1f} MiB optimizer state in {names}: "
    assert found[0].startswith(line)


def test_the_causes_add_up_to_the_change(comments: Comments) -> None:
    for _, comment in comments.values():
        change = re.search(r"^\| net \|.* ([+-][\d.]+) MiB \(", comment, re.MULTILINE)
        found = [re.search(r"([+-][\d.]+) MiB", line) for line in causes(comment)]
        total = sum(float(each[1]) for each in found if each)
        assert total == pytest.approx(float(change[1]) if change else 0, abs=0.3)


def test_a_first_block_that_is_frozen_is_told_with_what_it_saves(comments: Comments) -> None:
    _, comment = comments["first block frozen"]

    moments = 2 * 4 * (2 * 4 * 256 * 256 + 4 * 256 + 256)
    assert "net shrank" in comment
    names = "blocks.0.down, blocks.0.up"
    assert causes(comment)[0].startswith(f"- -4.0 MiB optimizer state in {names}: none is alive")
    assert causes(comment)[0].endswith(rf"; {moments:,} -\> 0 bytes")


def test_two_branches_merge_and_only_what_both_changed_is_measured(project: Project) -> None:
    edits = {
        "wider": ("net.py", *CHANGES["wider"]),
        "larger": ("tiny.py", "randn(4, 64)", "randn(8192, 64)"),
        "deeper": ("net.py", "range(6)", "range(8)"),
    }
    for branch, edit in edits.items():
        project.git("checkout", "--quiet", "-b", branch, "main")
        project.edit(*edit)
        assert check(project)[0] == 1
        assert check(project, "--update")[0] == 0
        project.commit(branch)

    project.git("checkout", "--quiet", "wider")
    project.git("merge", "--quiet", "--no-edit", "larger")
    assert check(project)[0] == 0

    project.git("merge", "--quiet", "--no-edit", "deeper", check=False)
    assert project.git("diff", "--name-only", "--diff-filter=U") == "graphmem.lock\n"
    assert check(project, "--update")[0] == 0
    project.commit("merge")
    assert check(project)[0] == 0


def test_the_comment_of_an_earlier_run_is_replaced(comments: Comments, tmp_path: Path) -> None:
    """`ci/comment.sh` runs here with a `gh` that knows one comment of ours, 41."""
    gh = tmp_path / "gh"
    gh.write_text('#!/bin/sh\necho "$@" >> calls\ncase "$*" in *--paginate*) echo 41 ;; esac\n')
    gh.chmod(0o755)
    (tmp_path / "comment.md").write_text(comments["wider"][1])

    subprocess.run(
        [ROOT / "ci" / "comment.sh", "7", "comment.md"],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "GITHUB_REPOSITORY": "me/net"},
        check=True,
    )

    _, _, update = (tmp_path / "calls").read_text().partition("--method PATCH ")
    assert update.startswith("repos/me/net/issues/comments/41 ")
    assert comments["wider"][1].strip() in update
