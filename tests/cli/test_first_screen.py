"""The first screen of `graphmem analyze`: the answer, then what holds the memory."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphmem.advice.first_aid import first_aid
from graphmem.analysis import Request, run_analysis

LAYERS = """
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, width)

    def forward(self, x):
        return torch.sin(self.up(x))


class Model(nn.Module):
    def __init__(self, layers, width):
        super().__init__()
        self.h = nn.Sequential(*[Layer(width) for _ in range(layers)])

    def forward(self, x):
        return self.h(x)


def build(layers: int = 4, width: int = 1024, batch: int = 4):
    return Model(layers, width), torch.randn(batch, 16384, width), lambda y: y.square().mean()
"""


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Layers that each save their input of 256 MiB, in a folder without a configuration."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(LAYERS)
    return "model.py:build"


def test_the_verdict_stands_before_the_peak(target: str, run_graphmem: Callable[..., Any]) -> None:
    done = run_graphmem("analyze", target, "--gpu", "t4", "--steps", "1")

    verdict, peak, *_ = done.stdout.split("\n\n")
    assert verdict.startswith("fits on Tesla T4 (14.563 GiB)\n")
    assert " to spare (" in verdict
    assert peak.startswith("peak ")


def test_out_of_memory_stands_in_the_first_lines(
    target: str, run_graphmem: Callable[..., Any]
) -> None:
    """16 layers of 1 GiB each, on a card of 14.6 GiB."""
    done = run_graphmem(
        "analyze", target, "--gpu", "t4", "--steps", "1",
        "--set", "layers=16", "--set", "batch=16",
    )  # fmt: skip

    verdict, place, *_ = done.stdout.splitlines()
    assert verdict == "does NOT fit on Tesla T4 (14.563 GiB): out of memory"
    assert place.startswith("  in the forward phase of step 0 at aten.")
    assert "(model.py:" in place
    assert done.exit_code == 0


def test_equal_layers_are_one_line(target: str, run_graphmem: Callable[..., Any]) -> None:
    """Each of 4 layers saves its product, 65536 x 1024 floats, for the derivative of the sine."""
    done = run_graphmem("analyze", target, "--steps", "1")

    assert "  h.[0-3].up, 4 x 256.0 MiB, float32 [65536 x 1024] (model.py:12)\n" in done.stdout


def test_derivative_formulas_are_shown_on_request_only(
    target: str, run_graphmem: Callable[..., Any]
) -> None:
    formula = "self: grad * self.cos().conj()"  # of sin, derivatives.yaml

    plain = run_graphmem("analyze", target, "--steps", "1").stdout
    verbose = run_graphmem("analyze", target, "--steps", "1", "--verbose").stdout

    assert "saved for the backward pass by SinBackward0.self" in plain
    assert formula not in " ".join(plain.split())
    assert formula in " ".join(verbose.split())


def test_a_brief_report_has_three_lines(target: str, run_graphmem: Callable[..., Any]) -> None:
    done = run_graphmem("analyze", target, "--gpu", "t4", "--steps", "1", "--brief")

    verdict, peak, place = done.stdout.splitlines()
    assert verdict.startswith("fits on Tesla T4 (14.563 GiB): ")
    assert peak.startswith("peak ")
    assert place.startswith("in the ")


def test_a_brief_report_says_where_memory_runs_out(
    target: str, run_graphmem: Callable[..., Any]
) -> None:
    """Three lines as well, the first of them no longer than the verdict."""
    done = run_graphmem(
        "analyze", target, "--gpu", "t4", "--steps", "1", "--brief",
        "--set", "layers=16", "--set", "batch=16",
    )  # fmt: skip

    verdict, peak, place = done.stdout.splitlines()
    assert verdict == "does NOT fit on Tesla T4 (14.563 GiB): out of memory"
    assert peak.startswith("peak ")
    assert place.startswith("out of memory in the forward phase of step 0 at aten.")


@pytest.mark.parametrize("width", ["80", "200"])
def test_no_line_is_wider_than_the_terminal(
    target: str, run_graphmem: Callable[..., Any], width: str, tmp_path: Path
) -> None:
    from graphmem.plain_text import plain_text
    from graphmem.report import Report
    from graphmem.report.text import print_report

    done = run_graphmem("analyze", target, "--steps", "2", "--format", "json")
    report = Report.from_json(done.stdout)
    lines = plain_text(lambda console: print_report(report, console), int(width)).splitlines()

    assert max(map(len, lines)) <= int(width)
    [drawn] = [line for line in lines if "█" in line and "▁" in line]
    assert len(drawn.strip()) == len(report.timeline)  # unbroken, alone on its line


class TestTheCard:
    """Which card is used when none is named."""

    def test_the_default_is_that_of_the_project(
        self, target: str, run_graphmem: Callable[..., Any], tmp_path: Path
    ) -> None:
        (tmp_path / "graphmem.toml").write_text('[defaults]\ngpu = "t4"\n')

        done = run_graphmem("analyze", target, "--steps", "1", "--brief")

        assert done.stdout.startswith("fits on Tesla T4 ")

    def test_a_named_card_overrides_that_of_the_project(
        self, target: str, run_graphmem: Callable[..., Any], tmp_path: Path
    ) -> None:
        (tmp_path / "graphmem.toml").write_text('[defaults]\ngpu = "t4"\n')

        done = run_graphmem("analyze", target, "--steps", "1", "--brief", "--gpu", "v100-16gb")

        assert "V100" in done.stdout.splitlines()[0]

    def test_a_mistake_in_the_file_names_its_line(
        self, target: str, run_graphmem: Callable[..., Any], tmp_path: Path
    ) -> None:
        (tmp_path / "graphmem.toml").write_text('[defaults]\ngpu = "t5"\n')

        done = run_graphmem("analyze", target, "--steps", "1")

        assert done.exit_code == 2
        assert done.stderr.startswith("error: graphmem.toml:2: ")


class TestAdvice:
    """If a step does not fit: changes that would help, measured, each with its command."""

    LARGE = ("--gpu", "t4", "--steps", "1", "--set", "layers=16", "--set", "batch=8")

    def test_the_largest_batch_that_fits_is_suggested(
        self, target: str, run_graphmem: Callable[..., Any]
    ) -> None:
        done = run_graphmem("analyze", target, *self.LARGE)

        [line] = [each for each in done.stdout.splitlines() if "the largest batch" in each]
        found = re.fullmatch(
            r"the largest batch that fits is ([\d,]+) \(8 was traced, ([\d,]+) does not fit\)",
            line,
        )
        assert found
        fits, fails = (each.replace(",", "") for each in found.groups())
        assert int(fails) == int(fits) + 1
        for size, verdict in ((fits, "fits on"), (fails, "does NOT fit on")):
            again = run_graphmem("analyze", target, *self.LARGE, "--batch", size, "--no-advice")
            assert again.stdout.startswith(verdict)

    def test_each_suggested_command_can_be_pasted_and_does_what_it_promises(
        self, target: str, run_graphmem: Callable[..., Any]
    ) -> None:
        done = run_graphmem("analyze", target, *self.LARGE, "--format", "json", "--advice")
        report = json.loads(done.stdout)
        changes = report["advice"]["changes"]

        assert 1 <= len(changes) <= 3
        assert [each["saves"] for each in changes] == sorted(
            (each["saves"] for each in changes), reverse=True
        )
        for change in changes:
            program, *arguments = shlex.split(change["command"])
            assert program == "graphmem"
            after = json.loads(run_graphmem(*arguments, "--format", "json").stdout)
            saved = report["peak"]["allocated"] - after["peak"]["allocated"]
            assert saved == change["saves"] > 0
            assert after["memory"]["on_card"]["fits"] == change["fits"]

    def test_the_cost_of_a_change_is_stated(
        self, target: str, run_graphmem: Callable[..., Any]
    ) -> None:
        text = run_graphmem("analyze", target, *self.LARGE).stdout

        assert re.search(r"^  1\. .*: saves .* GiB, then ", text, re.MULTILINE)
        assert "     cost: " in text
        begun = (
            "     graphmem analyze model.py:build --set layers=16 --set batch=8 --gpu t4 --steps 1"
        )
        assert f"\n{begun} --checkpoint 'h.*'\n" in text  # in one line, to be pasted

    def test_nothing_is_measured_where_the_step_fits(
        self, target: str, run_graphmem: Callable[..., Any]
    ) -> None:
        """The report prints the command that would measure them instead."""
        text = run_graphmem("analyze", target, "--gpu", "t4", "--steps", "1").stdout

        lines = text.partition("measure the largest batch and the biggest savings:\n")[
            2
        ].splitlines()
        assert lines[0] == "    graphmem analyze model.py:build --gpu t4 --steps 1 --advice"

    @pytest.mark.parametrize(
        ("chosen", "hinted"), [((), ""), (("--gpu", "a100-80gb"), " --gpu a100-80gb")]
    )
    def test_a_pasted_command_is_for_the_same_card(
        self, target: str, run_graphmem: Callable[..., Any], chosen: tuple[str, ...], hinted: str
    ) -> None:
        """In a project with a card of its own, the default card must be named as any other."""
        text = run_graphmem("analyze", target, *chosen, "--steps", "1").stdout

        assert f"    graphmem analyze model.py:build{hinted} --steps 1 --advice\n" in text

    def test_a_long_step_is_not_measured_unasked(self, target: str) -> None:
        request = Request(gpu="t4", steps=1, settings={"layers": "16", "batch": "8"})

        found = first_aid(target, request, run_analysis(target, request), affordable=0)

        assert (found.batch, found.changes) == (None, [])
        assert found.unmeasured[0].endswith(
            "graphmem fit model.py:build --set layers=16 --set batch=8 --gpu t4 --steps 1"
        )


def test_piped_lines_are_as_wide_as_columns_says(
    target: str, run_graphmem: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But a command, which is to be pasted, is one line."""
    monkeypatch.setenv("COLUMNS", "80")
    done = run_graphmem("analyze", target, "--steps", "1", "--no-advice", "--gpu", "t4")

    lines = [line for line in done.stdout.splitlines() if "graphmem analyze" not in line]
    assert 70 < max(map(len, lines)) <= 80
