"""Tensors of the card that pass through DLPack capsules."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from graphmem.live.gpu import VirtualGpu

Virtual = Callable[..., VirtualGpu]


@pytest.mark.parametrize("owner", [torch, torch.utils.dlpack])
def test_a_capsule_holds_the_memory_that_torch_makes_a_tensor_of(
    virtual_gpu: Virtual, owner: Any
) -> None:
    gpu = virtual_gpu("a100")
    row = torch.zeros(3, 4, device="cuda")[1:2]
    address = row.data_ptr()
    capsule = owner.to_dlpack(row)
    del row
    gc.collect()
    assert gpu.allocated == 512
    again = torch.from_dlpack(capsule)
    assert again.data_ptr() == address
    del capsule, again
    assert gpu.allocated == 0


def test_a_tensor_by_dlpack_is_a_view_with_the_same_values(virtual_gpu: Virtual) -> None:
    gpu = virtual_gpu("a100")
    counts = torch.ones(2, device="cuda")
    view = torch.from_dlpack(counts)
    view.add_(1)
    assert counts.tolist() == [2, 2]
    assert gpu.allocated == 512


def test_a_copy_by_dlpack_has_memory_of_its_own(virtual_gpu: Virtual) -> None:
    gpu = virtual_gpu("a100")
    counts = torch.ones(2, device="cuda")
    copy = torch.from_dlpack(counts, copy=True)
    assert copy.data_ptr() != counts.data_ptr()
    assert gpu.allocated == 2 * 512


def test_numpy_takes_a_copy_on_the_host_and_refuses_the_card(virtual_gpu: Virtual) -> None:
    virtual_gpu("a100")
    counts = torch.ones(2, device="cuda")
    assert np.from_dlpack(counts, device="cpu").tolist() == [1, 1]
    refused = (RuntimeError, BufferError)  # the latter from NumPy 2.5 on
    with pytest.raises(refused, match=r"^Unsupported device in DLTensor\.$"):
        np.from_dlpack(counts)
