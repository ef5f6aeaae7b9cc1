"""Shifts of booleans, which a card makes integers of."""

from __future__ import annotations

import torch

import graphmem


def test_shifted_booleans_are_integers_on_the_card_as_on_the_cpu() -> None:
    with graphmem.virtual_gpu("h100"):
        signs = torch.tensor([True, False, True], device="cuda")
        sums = (signs << 3).sum() + (signs >> 0).sum()
        assert (signs << 3).dtype == torch.int64 == (torch.tensor(True) << 3).dtype
        assert int(sums) == 2 * 8 + 2
