"""Every tutorial can be followed, and shows what its commands print."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import torch

from tools.tutorials import FOLDER, follow, updated

LONG = {"hugging_face", "lora", "many_gpus"}
NEEDED = {"hugging_face": ["transformers"], "lora": ["transformers", "peft"]}
MADE_WITH = "2.13"


TUTORIALS = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem in LONG else [])
    for path in sorted(FOLDER.glob("*.md"))
]


@pytest.mark.parametrize("path", TUTORIALS)
def test_a_tutorial_can_be_followed(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If outputs have changed, `python -m tools.tutorials` updates them."""
    missing = [each for each in NEEDED.get(path.stem, []) if not importlib.util.find_spec(each)]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    monkeypatch.chdir(tmp_path)
    commands = list(follow(path.read_text()))

    assert commands or "```python" in path.read_text()
    assert [each for each in commands if "graphmem itself failed" in each.output] == []
    if torch.__version__.startswith(MADE_WITH):
        assert [each for each in commands if not each.is_current] == []


def test_every_page_links_to_pages_that_are_there() -> None:
    broken = [
        f"{page.name}: {link}"
        for page in FOLDER.parent.rglob("*.md")
        for link in re.findall(r"\]\(([^)#:]+\.(?:md|png|svg))(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / link).exists()
    ]

    assert broken == []


def test_an_update_leaves_out_what_the_page_leaves_out() -> None:
    page = "```console\n$ seq 5\n0\n…\n4\n5\n```\n"

    assert updated(page) == "```console\n$ seq 5\n1\n…\n4\n5\n```\n"
