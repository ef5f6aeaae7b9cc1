"""Large tensors on the host: their numbers are those of a real run, and take memory if read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import graphmem
from tests.support.places import SCRIPTS
from tests.support.printed import printed

NUMBERS = SCRIPTS / "host_numbers.py"
GRAPHMEM = (sys.executable, "-m", "graphmem", "run", "--gpu", "t4")
LAYERS = """
import resource
import torch

def resident():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

x = torch.ones(1, 8192, device="cuda")
before = resident()
model = torch.nn.Sequential(*[torch.nn.Linear(8192, 8192) for _ in range(6)])
assert len({parameter.data_ptr() for parameter in model.parameters()}) == 12  # none is tied
model.cuda()(x).sum().backward()
print(resident() - before)
"""
LAYER_BYTES = 8192 * 8192 * 4


@pytest.mark.slow
def test_readers_find_the_numbers_of_a_real_run(tmp_path: Path) -> None:
    on_card = printed(*GRAPHMEM, "-o", tmp_path / "report.txt", NUMBERS, "card")

    assert on_card == printed(sys.executable, NUMBERS)


def test_weights_that_nobody_reads_take_no_memory(tmp_path: Path) -> None:
    script = tmp_path / "layers.py"
    script.write_text(LAYERS)

    grown = int(printed(*GRAPHMEM, "-o", tmp_path / "report.txt", script))

    assert grown < LAYER_BYTES  # of six


def test_after_a_virtual_gpu_the_numbers_are_there() -> None:
    import torch

    torch.manual_seed(0)
    with graphmem.virtual_gpu("t4"):
        weight = torch.empty(2100, 2100).normal_()
        after = torch.rand(2)

    torch.manual_seed(0)
    assert torch.equal(weight, torch.empty(2100, 2100).normal_())
    assert torch.equal(after, torch.rand(2))


def test_what_is_made_on_the_host_like_a_tensor_elsewhere_is_real() -> None:
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    with graphmem.virtual_gpu("t4"):
        net = torch.nn.Linear(3, 2, device="meta").to_empty(device="cpu")
        on_card = torch.ones(4, 3, device="cuda")
        made = [
            net.weight,
            torch.empty_like(on_card.t(), device="cpu"),
            torch.zeros_like(on_card, device="cpu", pin_memory=True),
            on_card.new_full((2,), 3.0, device="cpu"),
        ]
        assert not any(isinstance(each, FakeTensor) for each in made)
        assert made[1].stride() == (1, 3)
        assert made[2].is_pinned()
        assert [made[2].sum(), made[3].sum()] == [0, 6]
        assert made[1].copy_(on_card.t()).sum() == 12
