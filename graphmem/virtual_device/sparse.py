"""Sparse COO tensors without data: fake indices and values under one fake tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

aten = torch.ops.aten

_TILE = 2048  # of the sort: 256 threads with 8 keys of 8 bytes (`policy_hub::Policy600`)
_ALIGNMENT = 256


def sparse_of(
    fake_mode: FakeTensorMode,
    indices: FakeTensor,
    values: FakeTensor,
    shape: Sequence[int],
    *,
    is_coalesced: bool,
) -> FakeTensor:
    """Make a sparse tensor of the given indices and values (c10: `SparseTensorImpl`).

    Args:
        fake_mode: the mode that the tensor belongs to.
        indices: sparse dimensions x nonzeros.
        values: nonzeros x dense dimensions; gives dtype and device.
        shape: the tensor's shape.
        is_coalesced: whether the indices are sorted and unique.
    """
    sparse_dims = indices.shape[0]
    with torch._C._DisableTorchDispatch():
        memory = aten._sparse_coo_tensor_with_dims_and_tensors.default(
            sparse_dims,
            len(shape) - sparse_dims,
            list(shape),
            indices,
            values,
            dtype=values.dtype,
            layout=torch.sparse_coo,
            device="meta",
            is_coalesced=is_coalesced,
        )
    return FakeTensor(fake_mode, memory, values.fake_device)


def parts_of(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the indices and values of a sparse COO tensor, coalesced or not, without copying.

    Modes do not see it, because it is not an operation of the program.
    """
    with _disable_current_modes(), torch.no_grad():
        return aten._indices.default(tensor), aten._values.default(tensor)


def is_coalesced(tensor: torch.Tensor) -> bool:
    """`Tensor.is_coalesced`, unseen by modes."""
    with _disable_current_modes():
        return tensor.is_coalesced()


def sorting_bytes(count: int) -> int:
    """Memory in which Thrust sorts indices by an order of their own, with places of 8 bytes.

    `thrust::sort_by_key` takes it from the caching allocator in one piece: where each tile begins,
    keys and places (cub/device/dispatch/dispatch_merge_sort.cuh, `alias_temporaries`;
    thrust/system/cuda/detail/sort.h, `__merge_sort::merge_sort`). An H200 took as much for 32,768
    of them (fixtures/cuda/real/tabular_sparse).
    """
    tiles = -(-count // _TILE)
    parts = (4 * (1 + tiles), 8 * count, 8 * count)
    return sum(-(-part // _ALIGNMENT) * _ALIGNMENT for part in parts) + _ALIGNMENT - 1
