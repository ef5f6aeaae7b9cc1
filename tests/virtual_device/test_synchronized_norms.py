"""What `nn.SyncBatchNorm`'s operators allocate (aten/src/ATen/native/cuda/Normalization.cu)."""

from __future__ import annotations

import pytest
import torch

import graphmem

IMAGES, CHANNELS, SIDE = 8, 64, 28
ROWS = IMAGES * SIDE * SIDE
CHANNEL_BYTES = 4 * CHANNELS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_statistics_are_in_float32(dtype: torch.dtype) -> None:
    with graphmem.virtual_gpu("a100") as gpu:
        images = torch.ones(IMAGES, CHANNELS, SIDE, SIDE, dtype=dtype, device="cuda")
        before = gpu.allocated
        own = torch.batch_norm_stats(images, 1e-5)
        assert gpu.allocated - before == 2 * 512  # two vectors of CHANNEL_BYTES, in blocks of 512
        assert {(each.dtype, each.shape) for each in own} == {(torch.float32, (CHANNELS,))}


def test_sums_that_nobody_wants_are_made_for_channels_last_only() -> None:
    made = {}
    with graphmem.virtual_gpu("a100"):
        weight = torch.ones(CHANNELS, device="cuda")
        for layout in (torch.contiguous_format, torch.channels_last):
            images = torch.ones(IMAGES, CHANNELS, SIDE, SIDE, device="cuda")
            images = images.contiguous(memory_format=layout)
            sums = torch.batch_norm_backward_reduce(
                images, images, weight, weight, weight, True, True, False
            )
            made[layout] = [each is not None for each in sums]
    assert made[torch.contiguous_format] == [True, True, True, False]
    assert made[torch.channels_last] == [True] * 4


def test_channels_last_statistics_are_staged() -> None:
    """A block is 32 channels wide and 16 rows high, and a thread takes 16 rows: 25 blocks stand
    above each other (`flexible_launch_configs`), each with 4 values for each channel.
    """
    with graphmem.virtual_gpu("a100") as gpu:
        images = torch.ones(IMAGES, CHANNELS, SIDE, SIDE, device="cuda")
        images = images.contiguous(memory_format=torch.channels_last)
        torch.cuda.reset_peak_memory_stats()
        before = gpu.allocated
        own = torch.batch_norm_stats(images, 1e-5)
        assert len(own) == 2
        peak = torch.cuda.max_memory_allocated()
    down = -(-ROWS // (16 * 16))
    assert down == 25
    assert peak - before == 2 * 512 + 4 * CHANNEL_BYTES * down + 512
