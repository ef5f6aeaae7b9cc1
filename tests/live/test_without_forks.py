"""`graphmem run` where Python has neither forks nor `fcntl`, as under Windows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# What others ask for when they are imported is there; only graphmem has to do without.
WINDOWS = """
import os, shutil, sys
import torch._dynamo
for name in ("register_at_fork", "fork", "geteuid", "sched_getaffinity"):
    delattr(os, name)
shutil._use_fd_functions = False
sys.modules["fcntl"] = sys.modules["resource"] = None
from graphmem.cli import main
sys.exit(main(sys.argv[1:]))
"""
SCRIPT = """
import os, torch
weight = torch.ones(256, device="cuda", requires_grad=True)
for step in range(2):
    weight.sum().backward()
    torch.save(weight, "new.pt")
    os.replace("new.pt", "last.pt")
"""


@pytest.mark.slow
def test_a_script_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-c", WINDOWS, "run", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "\nfits on" in done.stderr
