"""What a distribution is built from."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.places import ROOT


def copied_sources(target: Path) -> Path:
    """Copy what goes into the wheel, so that a build leaves nothing in the work tree."""
    for folder in ("graphmem", "passes"):
        shutil.copytree(ROOT / folder, target / folder)
    for file in ("pyproject.toml", "LICENSE", "README.md", "docs/graphmem.1"):
        (target / file).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / file, target / file)
    return target
