"""What a command prints."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.places import ROOT


def printed(*command: str | Path) -> str:
    """The output of a command that runs in the repository and succeeds."""
    done = subprocess.run(
        list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
