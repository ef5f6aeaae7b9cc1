"""Analyses for the tests of pictures: a small step, and one with names that look like markup."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from graphmem.analysis import Analysis, Request, run_analysis

SCRIPT = "<script>title = 'owned'</script>"
HOSTILE_NAMES = (
    SCRIPT,
    '</script><img src=x onerror="title=1">',
    "quote \" ' ` ${1} {{ 7 * 7 }} & \\N \\l <b>",
    "слой層레이어🧠",
    "long_" * 60,
)


class Hostile(nn.Module):
    """A chain of layers with these names."""

    def __init__(self) -> None:
        super().__init__()
        for name in HOSTILE_NAMES:
            self.add_module(name, nn.Sequential(nn.Linear(64, 64), nn.GELU()))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for layer in self.children():
            values = layer(values)
        return values


def hostile() -> tuple[nn.Module, torch.Tensor]:
    return Hostile(), torch.randn(256, 64)


def small() -> tuple[nn.Module, torch.Tensor]:
    layers = [nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(4)]
    return nn.Sequential(*layers), torch.randn(1024, 256)


@cache
def hostile_analysis() -> Analysis:
    return run_analysis(hostile, Request(steps=2))


@cache
def small_analysis(*, compiled: bool = False) -> Analysis:
    return run_analysis(small, Request(steps=2, compile=compiled or None))
