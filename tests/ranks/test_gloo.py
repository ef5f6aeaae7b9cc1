"""Ranks that run alone allocate what real processes do over gloo (docs/accuracy_ranks.md)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

from tests.support import oracle
from tests.support.rank_oracle import allocations, events_of_ranks, real_events, traced_events
from tests.support.rank_programs import JOINED, OF_FOUR, OF_TWO

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo"
)
ATTEMPTS = 3
QUICK = ("ddp", "tensor parallel", "1f1b")
UNORDERED = {
    **dict.fromkeys(
        ("ddp with hook", "ddp joined", *JOINED),
        "NCCL holds what nobody waits for (clause 5 of graphmem/ranks/group.py)",
    ),
    **dict.fromkeys(
        ("zero bubble", "zero bubble in v", "dual pipe in v"),
        "PyTorch keeps a group's parameters in a set (pipelining/_backward.py)",
    ),
}
"""Programs whose frees have no fixed order, or not gloo's, and why."""
CASES = [
    pytest.param(name, size, marks=[] if name in QUICK else pytest.mark.slow, id=name)
    for size, programs in ((2, OF_TWO), (4, OF_FOUR))
    for name in programs
]


@pytest.mark.parametrize(("name", "size"), CASES)
def test_a_rank_alone_allocates_what_it_does_among_others(
    name: str, size: int, tmp_path: Path
) -> None:
    """Every allocation in order; also every free, unless gloo's threads were late three times."""
    traced = events_of_ranks(traced_events, name, size, tmp_path / "traced")
    for attempt in range(ATTEMPTS):
        real = events_of_ranks(real_events, name, size, tmp_path / f"real{attempt}")
        for one, other in zip(real, traced, strict=True):
            oracle.assert_equal(allocations(one), allocations(other))
        if name in UNORDERED or real == traced:
            return

    for one, other in zip(real, traced, strict=True):
        oracle.assert_equal(one, other)


def test_a_rank_that_fails_is_reported_and_ends_the_others(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="rank 0 of 2 failed"):
        events_of_ranks(real_events, "no such program", 2, tmp_path / "real")


def test_stages_differ(tmp_path: Path) -> None:
    """The judge tells ranks apart."""
    first, last = events_of_ranks(real_events, "gpipe", 2, tmp_path / "real")

    assert allocations(first) != allocations(last)
