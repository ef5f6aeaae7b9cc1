"""`grid_sample` by cuDNN: two dimensions, aligned corners, zero padding.

aten/src/ATen/native/cudnn/GridSampler.cpp.
"""

from __future__ import annotations

import torch

aten = torch.ops.aten


def _forward(tensor: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    batch, channels = tensor.shape[:2]
    return tensor.new_empty((batch, channels, *grid.shape[1:3]))


def _backward(
    tensor: torch.Tensor, grid: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return tensor.new_empty(tensor.shape), grid.new_empty(grid.shape)


KERNELS = {
    aten.cudnn_grid_sampler.default: _forward,
    aten.cudnn_grid_sampler_backward.default: _backward,
}
