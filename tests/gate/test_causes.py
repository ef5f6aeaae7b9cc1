"""The causes of a change: equal layers together, checkpointing named, every byte listed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from graphmem import Report, analyze
from graphmem.gate.compare import TargetVerdict, compare
from graphmem.gate.config import TargetConfig
from graphmem.gate.diff import diff_reports
from graphmem.gate.formats import messages
from graphmem.gate.formats.differences import DIFF_FORMATS
from graphmem.gate.lock import Entry, Lock, entry_of
from graphmem.module_calls import ModuleCall
from graphmem.report.schema import Holder
from tests.conftest import Outcome
from tests.gate.test_compare import Make, holder, report
from tests.support.gate_project import TINY, Project

__all__ = ["report"]

MODEL = """\
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, by_itself=False):
        super().__init__()
        self.by_itself = by_itself
        self.up = nn.Linear(8, 8)

    def inner(self, x):
        return self.up(x)

    def forward(self, x):
        if self.by_itself:
            return checkpoint(self.inner, x, use_reentrant=False)
        return self.inner(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.plain, self.local, self.old = Block(), Block(), Block()
        self.layers = nn.ModuleList(Block(by_itself=True) for _ in range(3))

    def forward(self, x):
        x = self.plain(x)
        x = checkpoint(lambda y: self.local(y), x, use_reentrant=False)
        x = checkpoint(self.old, x, use_reentrant=True)
        for layer in self.layers:
            x = layer(x)
        return x


def build():
    return Net(), torch.randn(2, 8)
"""


def calling(report: Report, **lines: str) -> Report:
    """The report of a step that calls `h.0` to `h.3`, and of these, `checkpointed` at a line."""
    calls = {"h.[0-3]": ModuleCall(lines["plain"], False)} if "plain" in lines else {}
    if "checkpointed" in lines:
        calls["h.[0-3]"] = ModuleCall(lines["checkpointed"], True)
    return msgspec.structs.replace(report, calls={"": ModuleCall(None, False), **calls})


def layers(mebibytes: int, *numbers: int) -> list[Holder]:
    return [holder(f"h.{number}", mebibytes) for number in numbers]


def said(before: Report, after: Report) -> list[str]:
    """The causes of a change, as all formats say them."""
    verdict = compare(TargetConfig(target="a.py"), entry_of(before), after)
    result: Any = SimpleNamespace(verdict=verdict)
    return messages.causes(result)


def line_of(text: str) -> str:
    return f"model.py:{1 + [line.strip() for line in MODEL.splitlines()].index(text)}"


def test_the_line_of_each_call_is_known_and_whether_it_is_checkpointed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)

    calls = analyze("model.py", steps=2).calls

    assert calls == {
        "": ModuleCall(None, False),
        "plain": ModuleCall(line_of("x = self.plain(x)"), False),
        "local": ModuleCall(
            line_of("x = checkpoint(lambda y: self.local(y), x, use_reentrant=False)"), True
        ),
        "old": ModuleCall(line_of("x = checkpoint(self.old, x, use_reentrant=True)"), True),
        "layers.[0-2]": ModuleCall(
            line_of("return checkpoint(self.inner, x, use_reentrant=False)"), True
        ),
        "layers.[0-2].up": ModuleCall(line_of("return self.up(x)"), False),
        **{f"{each}.up": ModuleCall(line_of("return self.up(x)"), False) for each in _SINGLE},
    }


_SINGLE = ("plain", "local", "old")

PACKAGE = """\
from torch import nn
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return checkpoint(self.layer, x, use_reentrant=False)
"""
LOOP = """\
import sys

import graphmem
import torch

sys.path.append("site-packages")
import a_package_of_layers


def build():
    model = a_package_of_layers.Net()
    return graphmem.TrainingStep(model=model, step=lambda: model(torch.ones(2, 8)).sum().backward())
"""


def test_the_line_of_a_call_in_a_package_is_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Transformers, whose `forward` checkpoints its layers."""
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "a_package_of_layers.py").write_text(PACKAGE)
    (tmp_path / "loop.py").write_text(LOOP)
    monkeypatch.chdir(tmp_path)

    calls = analyze("loop.py", steps=1).calls

    line = 1 + next(i for i, each in enumerate(LOOP.splitlines()) if "step=lambda" in each)
    assert calls["layer"] == ModuleCall(f"loop.py:{line}", True)


def test_checkpointing_that_has_gone_comes_before_larger_causes(report: Make) -> None:
    before = calling(report(*layers(1, 0)), checkpointed="a.py:5")
    after = calling(report(*layers(1, 0, 1, 2), holder("head", 8)), plain="a.py:6")

    assert said(before, after) == [
        (
            "checkpointing of h.[0-3] is gone: +2.0 MiB activation, called without it at a.py:6; "
            "1,048,576 -> 3,145,728 bytes"
        ),
        "+8.0 MiB activation in head (a.py:3): saved for the backward pass; 0 -> 8,388,608 bytes",
    ]
    assert DIFF_FORMATS["text"]([diff_reports("it", before, after)]).splitlines()[1] == (
        f"  {said(before, after)[0]}"
    )


def test_checkpointing_that_is_new_is_told_as_what_it_saves(report: Make) -> None:
    before = calling(report(*layers(2, 0, 1, 2, 3)), plain="a.py:6")
    after = calling(report(*layers(2, 0)), checkpointed="a.py:5")

    assert said(before, after) == [
        (
            "checkpointing of h.[0-3] is new: -6.0 MiB activation, called at a.py:5; "
            "8,388,608 -> 2,097,152 bytes"
        )
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({}, {"checkpointed": "a.py:5"}),  # a baseline of an older version
        ({"checkpointed": "a.py:5"}, {"checkpointed": "a.py:7"}),
        ({"checkpointed": "a.py:5"}, {"head": ""}),  # the layers are gone as well
    ],
)
def test_checkpointing_is_no_cause_if_it_is_not_known_to_have_changed(
    report: Make, old: dict[str, str], new: dict[str, str]
) -> None:
    before = report(*layers(1, 0))
    before = calling(before, **old) if old else before
    after = calling(report(*layers(1, 0, 1)), **new)

    assert [each.partition(" (")[0] for each in said(before, after)] == [
        "+1.0 MiB activation in h.1"
    ]


def test_a_later_moment_that_holds_the_same_of_another_layer_is_no_change(report: Make) -> None:
    before = report(holder("h.1", 4, "temporary"), *layers(2, 0))
    after = report(holder("h.5", 4, "temporary"), *layers(2, 0, 1, 2))

    assert [each.partition(" (")[0] for each in said(before, after)] == [
        "+4.0 MiB activation in h.[1-2]"
    ]
    assert said(before, after)[0].endswith("; 0 -> 2,097,152 bytes in each of 2")


def test_parameters_of_two_layers_do_not_make_up_for_each_other(report: Make) -> None:
    """As where two layers of a Sequential swap their widths."""
    before = report(holder("h.0", 4, "parameter"), holder("h.2", 1, "parameter"))
    after = report(holder("h.0", 1, "parameter"), holder("h.2", 5, "parameter"))

    assert [each.partition(" (")[0] for each in said(before, after)] == [
        "+4.0 MiB parameter in h.2",
        "-3.0 MiB parameter in h.0",
    ]


def test_modules_that_are_checkpointed_in_place_of_a_larger_one_are_named(report: Make) -> None:
    made = report(*layers(1, 0))
    calls = {"h": ModuleCall("a.py:5", True), "h.[0-3]": ModuleCall("a.py:6", False)}
    before = msgspec.structs.replace(made, calls=calls)
    after = calling(report(*layers(1, 0, 1)), checkpointed="a.py:6")
    after = msgspec.structs.replace(after, calls={"h": ModuleCall("a.py:5", False), **after.calls})

    assert said(before, after)[0].startswith(
        "checkpointing of h is gone (h.[0-3] instead): +1.0 MiB activation, called without it at"
    )


def test_what_is_not_listed_is_told_by_category(report: Make) -> None:
    names = "abcdefgh"
    kept = [holder(name, 9, op=name) for name in names]
    lines = [
        msgspec.structs.replace(each, source=f"a.py:{number}") for number, each in enumerate(kept)
    ]
    gone = [holder("z", 1, "temporary"), holder("y", 2, "input")]

    *_, last = said(report(*gone), report(*lines))

    assert last == "everything else: +27.0 MiB activation, -2.0 MiB input, -1.0 MiB temporary"


@pytest.mark.parametrize(
    ("category", "word"),
    [
        ("rounding", "rounding"),
        ("optimizer_state", "optimizer state"),
        ("kept", "kept by the script"),
    ],
)
def test_one_category_alone_is_told_as_such(category: str, word: str) -> None:
    entry = Entry(
        gpu="h100", torch="2.13.0", allocated=0, reserved=0, phases={}, categories={}, modules={}
    )
    result: Any = SimpleNamespace(verdict=TargetVerdict(entry, entry, [], [], rest={category: 9}))

    assert messages.causes(result) == [f"the only change: +9 B {word}"]


def test_the_baseline_keeps_which_modules_are_checkpointed(report: Make) -> None:
    made = entry_of(calling(report(*layers(1, 0)), checkpointed="a.py:5"))
    old = msgspec.structs.replace(made, checkpointed=msgspec.UNSET)

    assert made.checkpointed == ["h.[0-3]"]
    assert '"h.[0-3]",' in Lock(targets={"one": made}).to_toml()
    kept = Lock(targets={"one": old}).updated({"one": made}, frozenset({"one"}))
    assert kept.targets["one"] == made
    assert "checkpointed" not in Lock(targets={"one": old}).to_toml()


def test_a_shallow_clone_gets_a_hint_what_to_fetch(tmp_path: Path) -> None:
    project = Project.create(tmp_path / "project", tiny__py=TINY)
    project.write("graphmem.toml", '[targets.tiny]\ntarget = "tiny.py"\n')
    project.commit("a target")
    project.git("clone", "--quiet", "--depth", "1", f"file://{project.root}", str(tmp_path / "c"))

    done = Project(tmp_path / "c").graphmem("check", "--since", "origin/nowhere")

    assert done.exit_code == 2
    assert "fetch-depth: 0 of actions/checkout" in done.stderr


def test_two_files_are_compared_without_a_configuration_or_a_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_graphmem: Callable[..., Outcome]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("old.py", "new.py"):
        (tmp_path / name).write_text(TINY, encoding="utf-8")

    outcome = run_graphmem("diff", "old.py:build", "new.py:build")

    assert (outcome.exit_code, outcome.stderr) == (0, "")
    assert outcome.stdout.startswith("new.py:build: ")
