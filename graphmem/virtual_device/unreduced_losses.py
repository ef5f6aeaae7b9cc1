"""Losses returned in the storage of their unreduced values.

These kernels write every element's loss into the result and then shrink its shape to a scalar's,
but not its storage, on both CPU and CUDA (aten/src/ATen/native/BinaryOps.cpp and Loss.cpp:
`maybe_get_output().resize_({})`; cuda/Loss.cu: `loss.resize_as_(loss_reduced)`). The meta kernels
only get the shape right.
"""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from graphmem import constructors

LOSSES = (
    torch.ops.aten.mse_loss.default,
    torch.ops.aten.smooth_l1_loss.default,
    torch.ops.aten.binary_cross_entropy.default,
    torch.ops.aten.soft_margin_loss.default,
)


def in_unreduced_storage(
    fake_mode: FakeTensorMode, loss: FakeTensor, values: torch.Tensor, target: torch.Tensor
) -> FakeTensor:
    """Give a reduced loss a storage with room for every element; leave an unreduced one alone."""
    unreduced = torch.broadcast_shapes(values.shape, target.shape)
    if loss.shape == unreduced:
        return loss
    with torch._C._DisableTorchDispatch():
        memory = constructors.empty(unreduced, dtype=loss.dtype, device="meta").resize_(loss.shape)
    return FakeTensor(fake_mode, memory, loss.fake_device)
