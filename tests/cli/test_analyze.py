"""`graphmem analyze` and `graphmem graph` as their users call them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import graphmem
from tests.conftest import Outcome
from tests.support.places import FIXTURES

Run = Callable[..., Outcome]
MLP = (f"{FIXTURES / 'mlp.py'}:build", "--set", "seq=8", "--set", "d_model=64")


@pytest.fixture
def report(run_graphmem: Run) -> dict[str, Any]:
    outcome = run_graphmem("analyze", *MLP, "--format", "json")

    assert outcome.exit_code == 0
    found: dict[str, Any] = json.loads(outcome.stdout)
    return found


def test_json_has_every_field_of_the_schema(report: dict[str, Any]) -> None:
    assert report["schema"] == "graphmem.report/1"
    assert {"target", "runtime", "steps", "peak", "at_peak", "assumptions"} <= report.keys()
    assert {"gpu", "torch"} <= report["runtime"].keys()
    assert {
        "allocated",
        "requested",
        "step",
        "phase",
        "op",
        "module",
        "source",
    } <= report["peak"].keys()
    assert {
        "bytes",
        "category",
        "op",
        "shape",
        "dtype",
        "module",
        "source",
        "owners",
    } <= report["at_peak"]["holders"][0].keys()


def test_every_step_has_its_three_phases(report: dict[str, Any]) -> None:
    phases = [[phase["name"] for phase in step["phases"]] for step in report["steps"]]

    assert phases == [["forward", "backward", "optimizer"]] * 3


def test_a_phase_begins_where_the_previous_one_ended(report: dict[str, Any]) -> None:
    phases = [phase for step in report["steps"] for phase in step["phases"]]

    assert [phase["start"] for phase in phases[1:]] == [phase["end"] for phase in phases[:-1]]
    assert all(phase["peak"] >= max(phase["start"], phase["end"]) for phase in phases)
    assert max(phase["peak"] for phase in phases) == report["peak"]["allocated"]


def test_categories_and_modules_sum_to_the_peak(report: dict[str, Any]) -> None:
    at_peak = report["at_peak"]

    assert sum(at_peak["by_category"].values()) == report["peak"]["allocated"]
    assert sum(at_peak["by_module"].values()) == report["peak"]["allocated"]


def test_every_holder_has_an_owner_and_a_reason(report: dict[str, Any]) -> None:
    for holder in report["at_peak"]["holders"]:
        assert holder["reason"]
        assert holder["owners"] or holder["category"] == "workspace"


def test_text_shows_the_figures_of_the_json(run_graphmem: Run, report: dict[str, Any]) -> None:
    text = run_graphmem("analyze", *MLP).stdout
    peak = next(line for line in text.splitlines() if line.startswith("peak "))

    assert f"({report['peak']['allocated']:,} bytes)" in peak
    for phase in report["steps"][-1]["phases"]:
        assert f"{phase['start']:,}" in text
        assert f"{phase['peak']:,}" in text
    for nbytes in filter(None, report["at_peak"]["by_category"].values()):
        assert f"{nbytes:,}" in text
    assert f"({report['saved_for_backward']:,} bytes)" in text


def test_no_colour_without_a_terminal(run_graphmem: Run) -> None:
    assert "\x1b[" not in run_graphmem("analyze", *MLP).stdout


def test_the_api_returns_the_same_report(report: dict[str, Any]) -> None:
    found = graphmem.analyze(MLP[0], settings={"seq": "8", "d_model": "64"})

    assert json.loads(found.to_json()) == report


def test_a_callable_is_a_target() -> None:
    def build(width: int = 8) -> Any:
        import torch

        return torch.nn.Linear(width, width), torch.zeros(2, width)

    assert graphmem.analyze(build, settings={"width": "16"}).model.parameters == 16 * 16 + 16


@pytest.mark.parametrize(
    ("optimizer", "moments"),
    [("none", 0), ("sgd", 0), ("sgd-momentum", 1), ("adam", 2), ("adamw-fused", 2)],
)
def test_the_optimizer_can_be_named(run_graphmem: Run, optimizer: str, moments: int) -> None:
    """Fused optimizers also keep a 4-byte step count per parameter on the device."""
    text = run_graphmem("analyze", *MLP, "--optimizer", optimizer, "--format", "json").stdout
    model = json.loads(text)["model"]
    steps = 4 * 4 if optimizer.endswith("fused") else 0

    assert model["optimizer_state_bytes"] == moments * model["parameter_bytes"] + steps


def test_kept_gradients_outlive_the_iteration(run_graphmem: Run) -> None:
    ends = []
    for grads in ("keep", "none"):
        text = run_graphmem("analyze", *MLP, "--grads", grads, "--format", "json").stdout
        ends.append(json.loads(text)["steps"][-1]["phases"][-1]["end"])
    gradients = 2 * (64 * 256 * 2 + 256 + 64)  # bf16; all but the biases are multiples of 512
    rounded = gradients + (512 - 64 * 2)

    assert ends[0] - ends[1] == rounded


def test_a_file_is_written_whole(run_graphmem: Run, tmp_path: Path) -> None:
    written = tmp_path / "report.json"
    outcome = run_graphmem("analyze", *MLP, "--format", "json", "-o", str(written))

    assert (outcome.exit_code, outcome.stdout) == (0, "")
    assert graphmem.Report.from_json(written.read_text()).schema == "graphmem.report/1"
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_missing_folder_is_the_users_mistake(run_graphmem: Run, tmp_path: Path) -> None:
    outcome = run_graphmem("analyze", *MLP, "-o", str(tmp_path / "no" / "report.txt"))

    assert outcome.exit_code == 2
    assert "cannot write" in outcome.stderr


def test_the_graph_is_the_same_text_in_every_process(run_graphmem: Run) -> None:
    """In another one, strings have other hashes."""
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    command = [sys.executable, "-m", "graphmem", "graph", *MLP]
    environment = {"PYTHONHASHSEED": seed, "PATH": ""}
    other = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)

    assert run_graphmem("graph", *MLP).stdout == other.stdout


def test_a_line_of_the_graph_names_operation_shape_bytes_storage_module_and_line(
    run_graphmem: Run,
) -> None:
    """The first linear layer: 16 x 64 by 64 x 256 in bf16 is 8192 bytes."""
    lines = run_graphmem("graph", *MLP).stdout.splitlines()
    line = next(line for line in lines if "aten.addmm.default" in line)

    assert re.fullmatch(
        r"%\w+ = aten\.addmm\.default  bfloat16\[16x256\] 8192B s\d+  up  \S*mlp\.py:\d+  .*", line
    )


def test_library_flags_that_no_rule_models_are_named() -> None:
    """Each is an assumption with a bound; without convolutions cuDNN's flags change nothing."""

    import torch
    from torch import nn

    def build() -> object:
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.enabled = False
        return nn.Conv2d(3, 8, 3), torch.randn(2, 3, 16, 16), lambda out: out.sum()

    flags_can_be_set = getattr(torch.backends, "__allow_nonbracketed_mutation")
    with flags_can_be_set():  # torch.testing, which other tests import, removes it
        report = graphmem.analyze(build, steps=1)

    assert {
        "workspace of cuDNN's deterministic plans",
        "workspaces of cuDNN's trials",
        "workspace of cuDNN's convolutions without TF32",
        "memory of convolutions without cuDNN",
    } <= {each.what for each in report.assumptions}
