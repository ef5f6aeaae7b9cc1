"""Merging two baselines, as git asks for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from graphmem.gate.lock import Entry, Lock, read_lock
from graphmem.gate.merge import merge_locks
from tests.support.gate_project import Project

Merge = Callable[[Lock, Lock, Lock], str]


def entry(allocated: int) -> Entry:
    return Entry(
        gpu="a100-80gb",
        torch="2.13.0",
        allocated=allocated,
        reserved=2**21,
        phases={"forward": allocated},
        categories={"parameter": allocated},
        modules={"parameter": {"h.0": allocated}},
    )


def lock(**allocated: int) -> Lock:
    return Lock(targets={name: entry(nbytes) for name, nbytes in allocated.items()})


@pytest.fixture
def merged(tmp_path: Path) -> Merge:
    def merge(*versions: Lock) -> str:
        paths = [tmp_path / name for name in ("base", "ours", "theirs")]
        for path, version in zip(paths, versions, strict=True):
            path.write_text(version.to_toml())
        return merge_locks(*paths)

    return merge


def test_changes_of_different_targets_are_both_taken(merged: Merge) -> None:
    text = merged(lock(a=1, b=1, c=1), lock(a=2, b=1, c=1), lock(a=1, b=3))

    assert text == lock(a=2, b=3).to_toml()


def test_the_same_change_on_both_sides_is_no_conflict(merged: Merge) -> None:
    assert merged(lock(a=1), lock(a=2, n=5), lock(a=2, n=5)) == lock(a=2, n=5).to_toml()


def test_two_changes_of_one_target_are_a_conflict_of_whole_entries(merged: Merge) -> None:
    text = merged(lock(a=1, b=1), lock(a=2, b=2), lock(a=3, b=1))

    settled = "[targets.b]" + lock(b=2).to_toml().partition("[targets.b]")[2]
    ours, _, theirs = text.partition("=======")
    assert text.count("<<<<<<<") == 1
    assert "allocated = 2" in ours
    assert "allocated = 3" in theirs
    assert text.endswith(settled)


def test_a_target_that_one_side_removed_and_the_other_changed_is_a_conflict(merged: Merge) -> None:
    assert "<<<<<<< ours\n# a was removed\n=======" in merged(lock(a=1), lock(), lock(a=2))


def test_git_merges_two_branches_by_targets(tmp_path: Path) -> None:
    project = Project.create(tmp_path / "project", graphmem__lock=lock(a=1, b=1).to_toml())
    project.write(".gitattributes", "*.py diff\n")
    assert project.graphmem("init", "--merge-driver").exit_code == 0
    assert project.read(".gitattributes") == "*.py diff\ngraphmem.lock merge=graphmem\n"
    project.commit("baseline")
    branches = {"wider": lock(a=2, b=1), "deeper": lock(a=1, b=3), "other": lock(a=4, b=1)}
    for name, version in branches.items():
        project.git("checkout", "--quiet", "-b", name, "main")
        project.write("graphmem.lock", version.to_toml())
        project.commit(name)

    project.git("checkout", "--quiet", "wider")
    project.git("merge", "--quiet", "--no-edit", "deeper")
    assert read_lock(project.root / "graphmem.lock") == lock(a=2, b=3)

    project.git("merge", "--quiet", "--no-edit", "other", check=False)
    assert "UU graphmem.lock" in project.git("status", "--porcelain")
    assert project.lock.count("<<<<<<< ours") == 1
