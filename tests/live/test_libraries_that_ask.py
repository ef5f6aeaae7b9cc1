"""Libraries that ask whether a tensor is fake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ASKING = """
import torch

def is_fake_tensor(x):
    return isinstance(x, torch._subclasses.FakeTensor)
"""
SCRIPT = """
import torch
from transformers.utils import import_utils

print("fake before a module is called:", import_utils.is_fake_tensor(torch.ones(2, device="cuda")))
"""


def test_a_tensor_is_not_fake_before_the_first_call_of_a_module(tmp_path: Path) -> None:
    """As `generate` of transformers 5 asks when it prepares the mask of a static cache.

    In a process of its own, since another test may have loaded the real library.
    """
    utils = tmp_path / "transformers" / "utils"
    utils.mkdir(parents=True)
    for folder in (utils.parent, utils):
        (folder / "__init__.py").write_text("")
    (utils / "import_utils.py").write_text(ASKING)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    command = [sys.executable, "-m", "graphmem", "run", "--gpu", "a100-80gb", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert "fake before a module is called: False" in done.stdout, done.stderr
