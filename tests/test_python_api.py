"""`graphmem.analyze` in Python and in a notebook: live objects in, a readable report out."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import graphmem
from graphmem import InputError, Report, TrainingStep
from graphmem.notebook import load_ipython_extension
from graphmem.report.frames import NoLibraryError
from graphmem.targets import messages
from graphmem.user_errors import UserCodeError
from tests.support.places import ROOT

WIDTH, BATCH = 1024, 4096


def a_model() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


def squares(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


@pytest.fixture(scope="module")
def report() -> Report:
    return graphmem.analyze(a_model(), torch.randn(BATCH, WIDTH), loss=squares, gpu="t4")


def test_a_live_model_and_its_inputs_are_a_target(report: Report) -> None:
    """Equivalent to a function that builds both."""
    built = graphmem.analyze(lambda: (a_model(), torch.randn(BATCH, WIDTH), squares), gpu="t4")

    assert report.peak.allocated == built.peak.allocated
    assert report.model.parameters == 2 * (WIDTH * WIDTH + WIDTH)
    assert report.target == "Sequential"


def test_a_live_model_works_afterwards() -> None:
    model, x = a_model(), torch.randn(8, WIDTH)
    before = squares(model(x)).item()

    graphmem.analyze(model, x, loss=squares, gpu="t4", steps=1)

    assert squares(model(x)).item() == before


def test_a_training_step_is_a_target(report: Report) -> None:
    step = TrainingStep(model=a_model(), inputs=torch.randn(BATCH, WIDTH), loss=squares)

    assert graphmem.analyze(step, gpu="t4").peak.allocated == report.peak.allocated


def test_inputs_for_a_target_that_has_inputs_are_rejected() -> None:
    with pytest.raises(messages.InputsWithoutModelError):
        graphmem.analyze("model.py:build", torch.ones(1))


def test_a_non_target_is_rejected_with_what_is_accepted() -> None:
    with pytest.raises(messages.NoTargetError) as caught:
        graphmem.analyze(3)  # type: ignore[arg-type]

    assert caught.value.hint is not None
    assert "TrainingStep" in caught.value.hint


def test_an_error_in_a_given_model_of_a_package_names_the_model() -> None:
    transformers = pytest.importorskip("transformers")
    small = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=8)

    with pytest.raises(UserCodeError) as caught:
        graphmem.analyze(transformers.GPT2Model(small), {"use_cache": False})

    assert re.search(r"modeling_gpt2\.py:\d+, in GPT2Model\)$", str(caught.value))


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda: graphmem.analyze("m.py", gppu="t4"), "did you mean gpu?"),
        (lambda: graphmem.analyze("m.py", optimiser="sgd"), "did you mean optimizer?"),
        (lambda: graphmem.fit("m.py", gpus=["t4"], step=1), "did you mean steps?"),
    ],
)
def test_a_wrong_argument_suggests_the_nearest(call: Callable[[], Any], hint: str) -> None:
    with pytest.raises(messages.UnknownArgumentError) as caught:
        call()

    assert caught.value.hint == hint


def test_a_change_as_an_argument_is_told_where_it_belongs() -> None:
    with pytest.raises(messages.ChangeAsArgumentError) as caught:
        graphmem.analyze("m.py", checkpoint=("h.*",))  # type: ignore[call-arg]

    assert caught.value.hint == "give it as changes=graphmem.Changes(checkpoint=…)"


def test_a_model_without_its_inputs_is_told_how_to_give_them() -> None:
    with pytest.raises(messages.ModelWithoutInputsError) as caught:
        graphmem.analyze(a_model())

    assert str(caught.value) == "Sequential has no inputs, and its forward needs input"
    assert caught.value.hint == "graphmem.analyze(model, inputs, loss=…)"


@pytest.mark.parametrize("steps", [0, "2", 1.5])
def test_a_number_of_steps_that_is_none_is_rejected(steps: Any) -> None:
    with pytest.raises(messages.WrongStepsError, match=f"steps={steps!r}: it must be an integer"):
        graphmem.analyze(a_model(), torch.ones(1, WIDTH), steps=steps)


def test_a_hint_is_printed_with_the_error() -> None:
    with pytest.raises(InputError) as caught:
        graphmem.analyze(a_model(), torch.ones(1, WIDTH), gpu="h1000")

    printed = "".join(traceback.format_exception(caught.value))
    assert "unknown GPU 'h1000'\nhint: did you mean " in printed


class TestReport:
    """How a report prints itself."""

    def test_its_text_is_what_the_command_prints(self, report: Report) -> None:
        assert report.to_text().startswith("fits on Tesla T4 (14.563 GiB)\n")
        assert str(report) == report.to_text()

    def test_its_repr_is_short(self, report: Report) -> None:
        assert repr(report).startswith("<Report of Sequential: fits on Tesla T4 (14.563 GiB): ")
        assert len(repr(report)) < 400

    def test_a_notebook_shows_answer_timeline_and_holders(self, report: Report) -> None:
        shown = report._repr_html_()

        assert "fits on Tesla T4 (14.563 GiB)</strong>" in shown
        assert shown.count("<rect ") == len(report.timeline)
        assert "<td>AddmmBackward0" in shown or "saved for the backward pass by" in shown
        assert "<script" not in shown

    def test_names_are_not_markup(self) -> None:
        model = nn.Sequential()
        model.add_module("<b>owned</b>", nn.Linear(WIDTH, WIDTH))

        shown = graphmem.analyze(model, torch.ones(BATCH, WIDTH), gpu="t4").to_html()

        assert "<b>owned</b>" not in shown
        assert "&lt;b&gt;owned&lt;/b&gt;" in shown

    def test_a_data_frame_has_a_row_for_each_holder(self, report: Report) -> None:
        pytest.importorskip("pandas")
        frame = report.to_pandas()

        assert list(frame["bytes"]) == [each.bytes for each in report.at_peak.holders]
        assert frame["bytes"].sum() == report.peak.requested

    def test_a_missing_library_is_named(
        self, report: Report, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(__import__("sys").modules, "polars", None)

        with pytest.raises(NoLibraryError):
            report.to_polars()

    def test_two_are_compared(self, report: Report) -> None:
        twice = graphmem.analyze(a_model(), torch.randn(2 * BATCH, WIDTH), loss=squares, gpu="t4")

        comparison = report.compare(twice)

        grown = twice.peak.allocated - report.peak.allocated
        assert comparison.peak.change == grown > 0
        assert f"{grown:+,}" in str(comparison) == repr(comparison)
        assert "activations (saved)" in str(comparison)

    def test_the_peak_of_a_phase_is_that_of_any_iteration(self) -> None:
        def build() -> graphmem.TrainingStep:
            model, sizes = a_model().cuda(), iter((BATCH, 2 * BATCH, BATCH))
            return graphmem.TrainingStep(
                step=lambda: squares(model(torch.randn(next(sizes), WIDTH).cuda())).backward()
            )

        report = graphmem.analyze(build, gpu="t4", steps=3)

        rows = {row.name: row.before for row in report.compare(report).rows()}
        assert rows[f"peak of {report.peak.phase}"] == report.peak.allocated

    def test_it_is_read_back_unchanged(self, report: Report) -> None:
        assert Report.from_json(report.to_json()) == report
        assert json.loads(report.to_json())["schema"] == "graphmem.report/1"


class Shell:
    """The part of IPython that the magic needs."""

    def __init__(self) -> None:
        self.user_ns: dict[str, Any] = {"nn": nn, "torch": torch}
        self.magics: dict[str, Callable[[str, str], Any]] = {}

    def register_magic_function(self, function: Callable[..., Any], kind: str, name: str) -> None:
        assert kind == "cell"
        self.magics[name] = function

    def transform_cell(self, cell: str) -> str:
        return cell


class TestCellMagic:
    """`%%graphmem` runs a cell on a virtual card."""

    def test_a_cell_has_a_report_and_leaves_nothing_behind(self) -> None:
        shell = Shell()
        load_ipython_extension(shell)
        names = set(shell.user_ns)

        report = shell.magics["graphmem"](
            "--gpu=t4", "x = torch.ones(1024, 1024, device='cuda')\ny = x @ x\n"
        )

        # two matrices, and cuBLAS's workspace
        assert report.peak.requested - 2 * 4 * 1024 * 1024 < 9 << 20
        assert report.to_text().startswith("fits on Tesla T4")
        assert set(shell.user_ns) == names

    def test_a_cell_that_does_not_fit_says_so(self) -> None:
        shell = Shell()
        load_ipython_extension(shell)

        report = shell.magics["graphmem"]("--gpu t4", "x = torch.ones(1 << 33, device='cuda')\n")

        assert "does NOT fit on Tesla T4" in report._repr_html_()

    def test_other_errors_are_those_of_the_cell(self) -> None:
        shell = Shell()
        load_ipython_extension(shell)

        with pytest.raises(ZeroDivisionError):
            shell.magics["graphmem"]("", "1 / 0\n")


def test_a_saved_report_is_self_contained(report: Report, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(report.to_html())

    assert file.read_text().startswith("<!doctype html>\n")


def test_the_examples_of_the_docs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    page = (ROOT / "docs" / "python.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}

    for example in examples:
        exec(compile(example, "docs/python.md", "exec"), names)

    assert len(examples) == 2
    assert names["report"].peak.allocated > 0
    assert (tmp_path / "report.html").exists()
