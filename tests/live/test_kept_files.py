"""What a script saves does not replace the weights of an earlier run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

SCRIPT = """
import torch
from safetensors.torch import save_file

net = torch.nn.Linear(4, 2).cuda()
for _ in range(2):
    for name in ("old", "new"):
        torch.save(net.state_dict(), f"{name}.pt")
        save_file(net.state_dict(), f"{name}.safetensors")
torch.save(torch.arange(3), "data.pt")
"""
TRAINED = {"weight": torch.full((2, 4), 0.5), "bias": torch.ones(2)}


def test_files_of_an_earlier_run_keep_their_weights(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    torch.save(TRAINED, tmp_path / "weights.pt")
    (tmp_path / "old.pt").symlink_to("weights.pt")
    save_file(TRAINED, tmp_path / "old.safetensors")
    torch.save(torch.zeros(7), tmp_path / "data.pt")
    for file in tmp_path.iterdir():
        os.utime(file, (1, 1))

    command = [sys.executable, "-m", "graphmem", "run", "--gpu", "t4", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    report = " ".join(done.stderr.split())
    for name in ("weights.pt", "old.safetensors"):
        assert f"{name}, which was there before: kept as it was" in report
    assert (tmp_path / "old.pt").is_symlink()
    for trained in (torch.load(tmp_path / "old.pt"), load_file(tmp_path / "old.safetensors")):
        assert torch.equal(trained["weight"], TRAINED["weight"])
    for made in (
        torch.load(tmp_path / "new.pt", map_location="cpu"),
        load_file(tmp_path / "new.safetensors"),
    ):
        assert made["weight"].shape == (2, 4)
    assert torch.load(tmp_path / "data.pt").tolist() == [0, 1, 2]  # nothing of it was on the card
    assert not list(tmp_path.glob(".graphmem-*"))
