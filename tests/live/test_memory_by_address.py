"""Memory that a program takes by its address, without a tensor."""

from __future__ import annotations

import pytest
import torch

import graphmem
from tests.support.sizes import GIB, MIB


def test_it_is_a_block_of_the_program_with_its_line() -> None:
    with graphmem.virtual_gpu("a100-80gb") as gpu:
        address = torch.cuda.caching_allocator_alloc(3 * MIB)
        kept = torch.ones(2 * MIB, dtype=torch.uint8, device="cuda")
        torch.cuda.caching_allocator_delete(address)
        assert torch.cuda.memory_allocated() == kept.nbytes

    report = gpu.report()
    assert report.peak.allocated == 5 * MIB
    assert report.at_peak.by_category["rounding"] == 0
    largest = report.at_peak.holders[0]
    assert largest.bytes == 3 * MIB
    assert "caching_allocator_alloc" in largest.reason
    assert "test_memory_by_address.py:" in largest.reason


def test_a_request_that_does_not_fit_is_told() -> None:
    with graphmem.virtual_gpu("a100-80gb") as gpu, pytest.raises(torch.cuda.OutOfMemoryError):
        torch.cuda.caching_allocator_alloc(100 * GIB)

    (refused,) = (each for each in gpu.report().findings if each.found_by == "out of memory")
    assert "100.00 GiB" in " ".join(refused.lines)
