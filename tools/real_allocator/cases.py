"""Runs a case, a mode and a seed, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from graphmem.torch_releases.differences import Release
from tools.real_allocator.libraries import Libraries
from tools.real_allocator.modes import MODES

_ROOT = Path(__file__).resolve().parents[2]
_LAST_LINES = 5


def difference(
    libraries: Libraries, driver: Path, mode: str, seed: int, rules: Release | None = None
) -> str:
    """Compare the allocators.

    Args:
        libraries: those with the real allocator.
        driver: the folder of the pretended CUDA (driver/).
        mode: a name in `MODES`.
        seed: determines the steps.
        rules: the release whose rules graphmem follows; None: that of the libraries.

    Returns:
        the first difference, or how the process crashed; "" if there is none.
    """
    releases = ["{}.{}".format(*each) for each in (libraries.release, rules or libraries.release)]
    words = [str(libraries.folder), str(driver), *releases, mode, str(seed)]
    done = subprocess.run(
        [sys.executable, "-m", "tools.real_allocator.comparison", *words],
        cwd=_ROOT, env=_environment(MODES[mode].conf), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == 0:
        return done.stdout
    last = "\n  ".join(done.stderr.splitlines()[-_LAST_LINES:])
    return f"{mode}, seed {seed}: the process ended with {done.returncode}\n  {last}\n"


def _environment(conf: str) -> dict[str, str]:
    """This process's, less what else configures the allocator, or binds all functions at once."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name != "LD_BIND_NOW" and not name.startswith("PYTORCH_")
    }
    return kept | {"PYTORCH_CUDA_ALLOC_CONF": conf}
