"""Large tensors on the host: zeros are zeros, and what the card sends there takes no memory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.places import SCRIPTS
from tests.support.printed import printed

ZEROS = SCRIPTS / "host_zeros.py"
GRAPHMEM = (sys.executable, "-m", "graphmem", "run", "--gpu", "a100-80gb")
OFFLOADED = """
import resource
import torch

def resident():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

weights = torch.randn(1 << 26, device="cuda", dtype=torch.bfloat16)
before = resident()
master = weights.to("cpu").float().pin_memory().requires_grad_()
optimizer = torch.optim.AdamW([master], lr=1e-3)
for _ in range(2):
    master.grad = torch.zeros_like(master).pin_memory()
    for part in range(2):  # as gradients arrive in parts of a buffer
        half = 1 << 25
        gradient = torch.ones(half, device="cuda", dtype=torch.bfloat16)
        master.grad.narrow(0, part * half, half).copy_(gradient * torch.rand((), device="cuda"))
    torch.nn.utils.clip_grad_norm_([master], 1.0)
    optimizer.step()
    weights.copy_(master.detach().bfloat16())
    kept = torch.empty(1 << 26, pin_memory=True).copy_(weights)  # an activation, offloaded
print(resident() - before)
print(kept.abs().max().item(), master.grad[:3].tolist())
"""
ONE = 4 << 26  # bytes of the weights in 32 bits


@pytest.mark.slow
def test_readers_find_the_numbers_of_a_real_run(tmp_path: Path) -> None:
    beside_a_card = printed(*GRAPHMEM, "-o", tmp_path / "report.txt", ZEROS)

    assert beside_a_card == printed(sys.executable, ZEROS)


def test_what_the_card_sends_takes_no_memory(tmp_path: Path) -> None:
    script = tmp_path / "offload.py"
    script.write_text(OFFLOADED)

    grown, numbers = printed(*GRAPHMEM, "-o", tmp_path / "report.txt", script).splitlines()

    assert int(grown) < ONE // 4  # of six such tensors, and their copies
    assert numbers == "0.0 [0.0, 0.0, 0.0]"
