"""The documentation as a site, and the notebook in it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import graphmem
from graphmem.torch_releases import installed_release
from tests.conftest import Outcome
from tests.support.places import ROOT

DOCS = ROOT / "docs"
NOTEBOOK = DOCS / "notebook.ipynb"
MADE_WITH = "2.13"


def pages(navigation: Any) -> Iterator[str]:
    if isinstance(navigation, str):
        yield navigation
    else:
        for each in navigation.values() if isinstance(navigation, dict) else navigation:
            yield from pages(each)


def test_every_page_is_in_the_navigation_once() -> None:
    listed = list(pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    there = [path for kind in ("md", "ipynb") for path in DOCS.rglob(f"*.{kind}")]

    assert sorted(listed) == sorted(path.relative_to(DOCS).as_posix() for path in there)


@pytest.mark.skipif(installed_release() != (2, 13), reason="its figures are of torch 2.13")
def test_the_readme_shows_what_its_commands_print(
    run_graphmem: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the line that says that more follows."""
    monkeypatch.chdir(ROOT)
    readme = (ROOT / "README.md").read_text()
    screens = re.findall(r"^\$ graphmem (.*)\n((?:.*\n)*?)…$", readme, re.M)

    assert len(screens) == 2
    for arguments, shown in screens:
        done = run_graphmem(*arguments.split())
        assert shown in done.stdout + done.stderr


def test_the_readme_quotes_the_page_about_speed() -> None:
    section = (ROOT / "README.md").read_text().partition("## How fast")[2].partition("\n## ")[0]
    quoted = [line for line in section.splitlines() if line.startswith("|")]

    assert quoted
    assert set(quoted) <= set((DOCS / "speed.md").read_text().splitlines())


def test_the_reference_of_python_has_every_public_name() -> None:
    text = (DOCS / "api.md").read_text()

    assert {name for name in graphmem.__all__ if f"::: graphmem.{name}\n" not in text} == {
        "__version__"
    }


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs_jupyter")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert finished.returncode == 0, finished.stderr
    assert "analyze(" in (tmp_path / "api" / "index.html").read_text()
    assert "54.594 GiB" in (tmp_path / "screens" / "index.html").read_text()


def test_the_notebook_runs_and_shows_what_it_says() -> None:
    """If outputs have changed: `jupyter execute --inplace docs/notebook.ipynb`."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    shown = nbformat.read(NOTEBOOK, 4)
    now = nbclient.execute(nbformat.read(NOTEBOOK, 4), timeout=120)

    if torch.__version__.startswith(MADE_WITH):
        assert outputs(now) == outputs(shown)


def outputs(notebook: Any) -> list[str]:
    """What each cell prints, in one piece (the kernel sends it in as many as it flushes), then
    its last value as text."""
    texts = []
    for cell in notebook.cells:
        made = cell.get("outputs", ())
        texts.append("".join(each.text for each in made if each.output_type == "stream"))
        texts += [each.data["text/plain"] for each in made if each.output_type != "stream"]
    return [text for text in texts if text]
