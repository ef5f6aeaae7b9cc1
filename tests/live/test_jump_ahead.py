"""Jumps of PyTorch's generator on the host, beside the draws that they stand for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphmem.live.jump_ahead import jump

NUMBERS = 100_003  # 16 does not divide it, which `normal_` notices


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("method", ["uniform_", "normal_"])
def test_what_follows_a_jump_is_what_follows_a_draw(method: str, dtype: torch.dtype) -> None:
    def draw(tensor: torch.Tensor, generator: torch.Generator) -> Any:
        return getattr(tensor, method)(generator=generator)

    for before in (0, 1, 623, 624, 700):
        drawn, jumped = (torch.Generator().manual_seed(before) for _ in range(2))
        for generator in (drawn, jumped):
            torch.rand(before, generator=generator)

        draw(torch.empty(NUMBERS, dtype=dtype), drawn)
        jump(jumped, draw, NUMBERS, dtype)

        assert torch.equal(drawn.get_state(), jumped.get_state())


def test_jumps_add_up() -> None:
    def draw(tensor: torch.Tensor, generator: torch.Generator) -> Any:
        return tensor.uniform_(generator=generator)

    once, twice = (torch.Generator().manual_seed(1) for _ in range(2))
    jump(once, draw, 10**13, torch.float32)  # no machine could draw as many here
    jump(twice, draw, 4 * 10**12, torch.float32)
    jump(twice, draw, 6 * 10**12, torch.float32)

    assert torch.equal(once.get_state(), twice.get_state())
