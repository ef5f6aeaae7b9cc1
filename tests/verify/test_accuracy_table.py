"""tools/accuracy_table.py: the page of an invented suite."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from graphmem.verify import PrintedCase, PrintedRow, RecordedCase, Suite, SuiteRow, read_case
from graphmem.verify.text import SUITE_COLUMNS
from tests.support.places import ROOT

TOOL = ROOT / "tools" / "accuracy_table.py"
CASE = """
recording = "run"
target = "model.py:build"
start = "setup"
gpu = "h100"
torch = "2.9"
expect = "gap"
gap = "cuDNN chooses its workspace at run time"
"""


@pytest.fixture
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("accuracy_table", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_a_row_for_each_case_and_names_what_is_not_covered(
    tool: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "conv.toml"
    path.write_text(CASE)

    case = read_case(path)
    assert isinstance(case, RecordedCase)

    lines = list(tool.page(Suite((SuiteRow(case, None),), ()), ["other", "run"]))

    row = next(line for line in lines if line.startswith("| conv |"))
    assert row.count("|") == len(SUITE_COLUMNS) + 2
    assert row.startswith("| conv | h100-80gb | 2.9 | no recording |")
    assert "- **conv**: cuDNN chooses its workspace at run time." in lines
    assert lines[-1] == "`other`."


PRINTED_CASE = """
source = "someone's README"
target = "model.py:build"
figure = "max allocated in step 1"
gpu = "h100"
torch = "2.9"
printed = [
  { value = "2.5 MiB", settings = { width = 8 } },
  { value = "4096", error = 512, gap = "nobody knows" },
]
"""


def test_printed_figures_have_rows_causes_and_sources(tool: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(PRINTED_CASE)
    case = read_case(path)
    assert isinstance(case, PrintedCase)
    rows = [
        PrintedRow(case, figure, predicted)
        for figure, predicted in zip(case.printed, (2_621_440, 4_608), strict=True)
    ]

    lines = list(tool.page(Suite((), tuple(rows)), ["run"]))

    machine = "small | h100-80gb | 2.9"
    assert f"| {machine} | max allocated in step 1, width=8 | 2,621,440 | 2.5 MiB | 0 |" in lines
    assert f"| {machine} | max allocated in step 1 | 4,608 | 4096 | 512 |" in lines
    assert "\n1 of 2 figures are equal." in lines
    assert "- **small**: nobody knows." in lines
    assert lines[-1] == "- **small**: someone's README."


def test_a_folder_without_recordings_leaves_the_page_alone(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "accuracy.md"

    assert tool.main(["--recordings", str(tmp_path), "-o", str(output)]) == 2
    assert not output.exists()
    assert "none of the cases' recordings" in capsys.readouterr().err
