"""Fixtures of programs that run on a virtual card."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def make_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Write a module of a library, by its dotted name; imports find it first."""

    def make(name: str, source: str) -> None:
        library, *inner = name.split(".")
        folder = tmp_path
        for package in (library, *inner[:-1]):
            folder /= package
            folder.mkdir()
            (folder / "__init__.py").touch()
        (folder / f"{inner[-1]}.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        for each in [each for each in sys.modules if each.partition(".")[0] == library]:
            monkeypatch.delitem(sys.modules, each)

    return make
