"""The step graph's description of a tensor, shape, dtype, strides and storage, and of a switch."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem.graph import SparseOut, Storage, TensorOut
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
    shape, dtype = sizes(tensor.shape), DTYPE_NAMES[tensor.dtype]
    number = None if storage is None else storage.id
    if tensor.layout is torch.strided:
        return TensorOut(shape, dtype, number, sizes(tensor.stride()), int(tensor.storage_offset()))
    if tensor.layout is torch.sparse_coo:
        nonzeros, is_sorted = tensor._nnz(), tensor.is_coalesced()
        return SparseOut(shape, dtype, number, nonzeros=nonzeros, is_coalesced=is_sorted)
    return TensorOut(shape, dtype, number)


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
