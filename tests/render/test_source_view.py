"""The user's source lines in the page, each with its bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from graphmem.analysis import Analysis, Request, run_analysis
from graphmem.cli import main
from graphmem.graph import OwnerKind
from graphmem.record import save
from graphmem.render.lifetimes import lifetimes
from graphmem.render.source_files import source_files
from tests.support.browser import Open

# Its last line looks like the end of a script, and is not UTF-8.
MODEL = """\
# -*- coding: latin-1 -*-
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(256, 1024)
        self.down = nn.Linear(1024, 256)

    def forward(self, x):
        wide = torch.tanh(self.up(x))
        return self.down(wide * 2)


def build():
    return Net(), torch.randn(512, 256)


END = "é</script><b>bold</b>"
"""


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "net.py").write_text(MODEL, encoding="latin-1")
    monkeypatch.chdir(tmp_path)
    return "net.py:build"


def rendered(*arguments: str) -> str:
    assert main(["render", *arguments, "-o", "page.html"]) == 0
    return Path("page.html").read_text(encoding="utf-8")


def bytes_by_line(analysis: Analysis) -> dict[int, tuple[int, int]]:
    """For each line of net.py, the bytes alive at the peak, and those saved by autograd."""
    peak, _ = analysis.timeline.peak()
    found: dict[int, tuple[int, int]] = {}
    for life in lifetimes(analysis):
        op = life.storage.op
        source = None if op is None else analysis.graph.ops[op].source
        if source is None or source.file != "net.py" or not life.holds_at(peak):
            continue
        saved = any(
            each.kind is OwnerKind.SAVED_TENSOR and each.holds_at(peak.tick)
            for each in life.storage.owners
        )
        alive, kept = found.get(source.line, (0, 0))
        found[source.line] = (alive + life.block, kept + life.block * saved)
    return found


def shown_lines(browser: webdriver.Chrome) -> dict[int, tuple[str, str]]:
    rows = browser.find_elements(By.CSS_SELECTOR, "#source-body tr.holds")
    return {
        int(row.get_attribute("data-line") or 0): (
            row.find_element(By.TAG_NAME, "button").get_attribute("title") or "",
            row.find_elements(By.TAG_NAME, "td")[2].get_attribute("textContent") or "",
        )
        for row in rows
    }


def test_each_line_has_the_bytes_it_allocated(open_page: Open, target: str) -> None:
    expected = bytes_by_line(run_analysis(target, Request()))

    shown = shown_lines(open_page(rendered(target)))

    assert any(saved for _, saved in expected.values())
    assert {line: alive for line, (alive, _) in shown.items()} == {
        line: f"{alive:,} bytes" for line, (alive, _) in expected.items()
    }
    assert {line for line, (_, saved) in shown.items() if saved} == {
        line for line, (_, saved) in expected.items() if saved
    }


def test_the_code_stays_text(open_page: Open, target: str) -> None:
    browser = open_page(rendered(target))

    code = browser.find_elements(By.CSS_SELECTOR, "#source-body .code")

    assert [each.get_attribute("textContent") for each in code] == MODEL.splitlines()
    assert browser.find_elements(By.CSS_SELECTOR, "#source-body b") == []


def test_the_bytes_of_a_line_lead_to_its_storages(open_page: Open, target: str) -> None:
    browser = open_page(rendered(target))

    row = browser.find_element(By.CSS_SELECTOR, "#source-body tr.holds")
    line = row.get_attribute("data-line")
    browser.execute_script("arguments[0].click()", row.find_element(By.TAG_NAME, "button"))

    search = browser.find_element(By.ID, "search")
    places = browser.find_elements(By.CSS_SELECTOR, "#holders-body td small")
    assert search.get_attribute("value") == f"net.py:{line}"
    assert {place.text for place in places} == {f"net.py:{line}"}


def test_a_page_without_source_shows_no_line(open_page: Open, target: str) -> None:
    browser = open_page(rendered(target, "--no-source"))

    assert not browser.find_element(By.ID, "source").is_displayed()
    assert browser.find_elements(By.CSS_SELECTOR, "#source-body tr") == []


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (None, "it is gone"),
        (MODEL.replace("import torch\n", "import torch\n\n", 1), "its lines have moved"),
        (MODEL.replace("def forward", "def other"), "the line is in another function"),
        ("x = (", "it is no Python"),
    ],
)
def test_another_version_of_a_file_is_not_shown(target: str, now: str | None, why: str) -> None:
    analysis = run_analysis(target, Request())
    assert list(source_files(analysis.graph)) == ["net.py"]
    file = Path("net.py")

    if now is None:
        file.unlink()
    else:
        file.write_text(now, encoding="latin-1")

    assert source_files(analysis.graph) == {}, why


def test_a_saved_step_shows_its_lines_too(target: str) -> None:
    analysis = run_analysis(target, Request())
    save(analysis.step, Path("net.graphmem"))

    again = run_analysis("net.graphmem", Request())

    assert source_files(again.graph) == {"net.py": MODEL}


def test_files_of_packages_are_not_embedded(tmp_path: Path, target: str) -> None:
    package = tmp_path / "venv" / "site-packages" / "net.py"
    package.parent.mkdir(parents=True)
    package.write_text(MODEL, encoding="latin-1")

    analysis = run_analysis(f"{package}:build", Request())

    assert source_files(analysis.graph) == {}
