"""What Inductor takes on the card to choose between a kernel's configurations, by release."""

from __future__ import annotations

import pytest
import torch

import graphmem
from graphmem import TrainingStep

X = 4 * 4096 * 4096
TRITONS = {"2.5": 256_000_000, "2.6": 256 * 2**20}
"""Bytes by which Triton 3.1 and 3.2 flush the card's cache; 2.7's Inductor flushes its 40 MiB."""


@pytest.mark.parametrize(
    ("release", "timed"),
    [
        # The kernel takes what it changes by two names, and each is cloned. PyTorch 2.5.1's own
        # Inductor and allocator, above a libcudart that runs no kernel, peak at these bytes too.
        ("2.5", 2 * X + TRITONS["2.5"]),
        # The first configuration's copies are on the host, which makes room for the second's.
        ("2.6", 2 * X + TRITONS["2.6"]),
        ("2.7", 40 * 2**20),
    ],
)
def test_until_2_5_what_a_timed_kernel_changes_is_cloned_on_the_card(
    release: str, timed: int
) -> None:
    """PR #136701 has copies go to the host, unless the peak has room for them."""

    def step() -> None:
        torch.compile(lambda x: x.add_(1))(torch.ones(4096, 4096, device="cuda"))

    report = graphmem.analyze(
        lambda: TrainingStep(step=step), gpu="a100-80gb", torch=release, steps=1
    )

    assert report.peak.allocated == X + timed


@pytest.mark.parametrize(("release", "flushed"), [*TRITONS.items(), ("2.7", 40 * 2**20)])
def test_the_buffer_of_benchmarks_was_tritons_until_2_6(release: str, flushed: int) -> None:
    """`InductorBenchmarker` (torch/_inductor/runtime/benchmarking.py) came with 2.7."""

    def step() -> None:
        torch.compile(torch.relu)(torch.ones(4096, 4096, device="cuda"))

    report = graphmem.analyze(
        lambda: TrainingStep(step=step), gpu="a100-80gb", torch=release, steps=1
    )

    assert report.peak.allocated == 2 * X + flushed
