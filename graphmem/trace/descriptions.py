"""The step graph's description of a tensor, shape, dtype, strides and storage, and of a switch."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem.graph import Storage, TensorOut
from graphmem.op_states import Determinism

DTYPE_NAMES = {
    dtype: str(dtype).removeprefix("torch.")
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
}


_SIZES: dict[tuple[int, ...], tuple[int, ...]] = {}


def sizes(numbers: Iterable[int]) -> tuple[int, ...]:
    """A shape or strides; equal ones are one tuple, since layers and iterations are alike."""
    found = tuple(numbers)
    return _SIZES.setdefault(found, found)


def described(tensor: torch.Tensor, storage: Storage | None) -> TensorOut:
    """Describe a tensor; its storage is None if that is not counted."""
    is_strided = tensor.layout is torch.strided
    is_sparse = tensor.layout is torch.sparse_coo
    return TensorOut(
        shape=sizes(tensor.shape),
        dtype=DTYPE_NAMES[tensor.dtype],
        storage=None if storage is None else storage.id,
        stride=sizes(tensor.stride()) if is_strided else (),
        offset=int(tensor.storage_offset()) if is_strided else 0,
        nonzeros=tensor._nnz() if is_sparse else None,
        is_coalesced=is_sparse and tensor.is_coalesced(),
    )


def device_name(tensor: torch.Tensor) -> str:
    """The name of a tensor's device; `device` of a fake one would dispatch an operation."""
    return _name_of(tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device)


def determinism() -> Determinism:
    """What the program asks of the operation that runs (`torch.use_deterministic_algorithms`)."""
    if not torch.are_deterministic_algorithms_enabled():
        return Determinism.NONE
    fills = torch._C._get_deterministic_fill_uninitialized_memory()
    return Determinism.FILLED if fills else Determinism.ALGORITHMS


_name_of = cache(str)
