"""The gradient of `fractional_max_pool3d` (aten/src/ATen/native/cuda/FractionalMaxPool3d.cu)."""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten


def _backward(grad: torch.Tensor, tensor: torch.Tensor, *_: Any) -> torch.Tensor:
    return tensor.new_empty(tensor.shape)


KERNELS = {aten.fractional_max_pool3d_backward.default: _backward}
