"""What a program saves with safetensors is the library's file, whose zeros take no room."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import graphmem

LARGE = 4 << 20


def _tensors(device: str) -> dict[str, torch.Tensor]:
    """Of several types, whose order in the file is the library's; on the host, with values."""
    return {
        "head.weight": torch.zeros(LARGE, dtype=torch.bfloat16, device=device),
        "body.weight": torch.zeros(3, 5, device=device),
        "steps": torch.tensor(7),
        "table": torch.arange(1 << 19).view(2, -1),
        "mask": torch.ones(0, 4, dtype=torch.bool),
        "größe": torch.full((3,), 0.5, dtype=torch.float16),
    }


def test_the_file_is_the_librarys(tmp_path: Path) -> None:
    metadata = {"note": "größer"}
    with graphmem.virtual_gpu("t4"):
        save_file(_tensors("cuda"), tmp_path / "run.safetensors", metadata)
    save_file(_tensors("cpu"), tmp_path / "real.safetensors", metadata)

    made, real = (tmp_path / f"{name}.safetensors" for name in ("run", "real"))
    assert made.read_bytes() == real.read_bytes()
    assert made.stat().st_blocks * 512 < 2 * LARGE < real.stat().st_blocks * 512


def test_a_file_without_tensors_and_one_of_zeros_alone(tmp_path: Path) -> None:
    with graphmem.virtual_gpu("t4"):
        save_file({}, tmp_path / "empty.safetensors")
        save_file({"w": torch.zeros(LARGE, device="cuda")}, f"{tmp_path}/zeros.safetensors")

    assert not load_file(tmp_path / "empty.safetensors")
    assert load_file(tmp_path / "zeros.safetensors")["w"].shape == (LARGE,)
