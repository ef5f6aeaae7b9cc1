"""Losses that come back in the storage of their unreduced values.

These kernels write every element's loss into the result, and then shrink its shape to that of a
scalar, not its storage, on the CPU and on CUDA alike (aten/src/ATen/native/BinaryOps.cpp and
Loss.cpp: `maybe_get_output().resize_({})`; cuda/Loss.cu: `loss.resize_as_(loss_reduced)`). The
meta kernels know the shape only.
"""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

LOSSES = (
    torch.ops.aten.mse_loss.default,
    torch.ops.aten.smooth_l1_loss.default,
    torch.ops.aten.binary_cross_entropy.default,
    torch.ops.aten.soft_margin_loss.default,
)


def in_unreduced_storage(
    fake_mode: FakeTensorMode, loss: FakeTensor, values: torch.Tensor, target: torch.Tensor
) -> FakeTensor:
    """The same loss in a storage for every element; unchanged where nothing was reduced."""
    unreduced = torch.broadcast_shapes(values.shape, target.shape)
    if loss.shape == unreduced:
        return loss
    with torch._C._DisableTorchDispatch():
        memory = torch.empty(unreduced, dtype=loss.dtype, device="meta").resize_(loss.shape)
    return FakeTensor(fake_mode, memory, loss.fake_device)
