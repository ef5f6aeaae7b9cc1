"""Operations on sparse COO tensors for which PyTorch has no meta kernel.

A sparse host tensor has a known number of nonzeros; on the device it has memory for that many
indices and values, which die with it. Graph networks need:

(1) copies on the device (aten/src/ATen/native/TensorConversions.cpp, `_to_copy`, and
    sparse/SparseTensor.cpp, `clone_sparse`);
(2) `detach`, which shares indices and values (c10, `SparseTensorImpl::shallow_copy_and_detach`);
(3) `t` and `transpose`, which copy both and leave them unsorted
    (aten/src/ATen/native/TensorShape.cpp, `sparse_transpose_`);
(4) products of a sparse and a dense matrix, which are dense and row-major
    (aten/src/ATen/native/sparse/cuda/SparseCUDATensorMath.cu, `s_addmm_sparse_dense_cuda`);
(5) sparse rows added to a dense matrix in place, as SGD does with an embedding's gradient
    (the same file, `add_out_dense_sparse_cuda`);
(6) `coalesce` of such rows, whose new indices lie in memory for all of the old ones
    (sparse/cuda/SparseCUDATensor.cu, `_coalesce_sparse_cuda`: `indices1D.resize_`), and
    `sparse_mask` of a dense matrix by them (sparse/SparseTensor.cpp), as SparseAdam does. How many
    rows are distinct is known if the indices are; otherwise all are assumed to be, the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem import constructors
from graphmem.trace.special_operators import SpecialOperatorsMode
from graphmem.virtual_device.sparse import parts_of, sparse_of

aten = torch.ops.aten

_CUSPARSE_DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)
"""Others have no kernel (aten/src/ATen/native/sparse/cuda/SparseBlasLegacy.cpp)."""


class SparseMode(SpecialOperatorsMode):
    """A trace that supports sparse tensors."""

    def __init__(self, *watchers: Any) -> None:
        super().__init__(*watchers)
        self._of_sparse: dict[Any, Callable[..., torch.Tensor | None]] = {
            aten._to_copy.default: self._copy_sparse,
            aten.clone.default: self._copy_sparse,
            aten.detach.default: self._detach_sparse,
            aten.t.default: self._transpose_sparse,
            aten.transpose.int: self._transpose_sparse,
            aten.mm.default: self._sparse_product,
            aten.addmm.default: self._sparse_sum,
            aten._sparse_addmm.default: self._sparse_sum,
            aten.add_.Tensor: self._add_sparse_rows,
            aten._coalesce.default: self._coalesce_rows,
            aten.sparse_mask.default: self._mask_by_rows,
        }

    def _run(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        made = self._of_sparse.get(func)
        if made is not None and not self._stays_real(func, args, kwargs):
            result = made(*args, **kwargs)
            if result is not None:
                return self._record_made(func, args, kwargs, result)
        return super()._run(func, types, args, kwargs)

    def _copy_sparse(
        self,
        tensor: torch.Tensor,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        **options: Any,
    ) -> FakeTensor | None:
        """A copy on the device; one on the host would need unknown data."""
        target = device or _device_of(tensor)
        if tensor.layout is not torch.sparse_coo or target.type == "cpu":
            return None
        indices, values = parts_of(tensor)
        return sparse_of(
            self._fake_mode,
            self._empty_on(target, indices.shape, indices.dtype),
            self._empty_on(target, values.shape, dtype or values.dtype),
            tensor.shape,
            is_coalesced=tensor.is_coalesced(),
        )

    def _detach_sparse(self, tensor: torch.Tensor) -> FakeTensor | None:
        if tensor.layout is not torch.sparse_coo:
            return None
        indices: Any
        values: Any
        indices, values = parts_of(tensor)
        is_coalesced = tensor.is_coalesced()
        return sparse_of(self._fake_mode, indices, values, tensor.shape, is_coalesced=is_coalesced)

    def _transpose_sparse(
        self, tensor: torch.Tensor, first: int = 0, second: int = 1
    ) -> FakeTensor | None:
        if tensor.layout is not torch.sparse_coo or tensor.dim() < 2:
            return None
        first, second = first % tensor.dim(), second % tensor.dim()
        shape = list(tensor.shape)
        shape[first], shape[second] = shape[second], shape[first]
        device = _device_of(tensor)
        indices, values = parts_of(tensor)
        return sparse_of(
            self._fake_mode,
            self._empty_on(device, indices.shape, indices.dtype),
            self._empty_on(device, values.shape, values.dtype),
            shape,
            is_coalesced=first == second and tensor.is_coalesced(),
        )

    def _add_sparse_rows(
        self, dense: torch.Tensor, rows: torch.Tensor, **factor: Any
    ) -> torch.Tensor | None:
        """Clause (5): nothing is allocated."""
        if not isinstance(rows, FakeTensor) or rows.layout is not torch.sparse_coo:
            return None
        is_fitting = dense.shape == rows.shape and dense.dtype == rows.dtype
        has_rows = parts_of(rows)[0].shape[0] == 1
        return dense if is_fitting and has_rows and _is_on_card(rows) else None

    def _coalesce_rows(self, rows: torch.Tensor) -> FakeTensor | None:
        indices: Any
        values: Any
        indices, values = parts_of(rows)
        if not isinstance(rows, FakeTensor) or indices.shape[0] != 1 or not _is_on_card(rows):
            return None
        distinct = self._distinct(indices)
        with torch._C._DisableTorchDispatch():
            memory = constructors.empty(indices.shape, dtype=indices.dtype, device="meta")[
                :, :distinct
            ]
        return sparse_of(
            self._fake_mode,
            FakeTensor(self._fake_mode, memory, rows.fake_device),
            self._empty_on(rows.fake_device, (distinct, *values.shape[1:]), values.dtype),
            rows.shape,
            is_coalesced=True,
        )

    def _distinct(self, indices: torch.Tensor) -> int:
        known = self.reads.known.of(indices)
        if known is None:
            return self.reads.count("how many rows of a sparse gradient differ", indices.numel())
        self.reads.use(known.basis)
        with torch._C._DisableTorchDispatch():
            return int(known.tensor.unique().numel())

    def _mask_by_rows(self, dense: torch.Tensor, mask: torch.Tensor) -> FakeTensor | None:
        if not isinstance(mask, FakeTensor) or dense.layout is not torch.strided:
            return None
        indices, values = parts_of(mask)
        if indices.shape[0] != 1 or not _is_on_card(mask):
            return None
        return sparse_of(
            self._fake_mode,
            self._empty_on(mask.fake_device, indices.shape, indices.dtype),
            self._empty_on(mask.fake_device, values.shape, dense.dtype),
            mask.shape,
            is_coalesced=mask.is_coalesced(),
        )

    def _sparse_product(self, left: torch.Tensor, right: torch.Tensor) -> FakeTensor | None:
        if left.layout is not torch.sparse_coo or not isinstance(right, FakeTensor):
            return None
        if right.layout is not torch.strided or not _are_factors(left, right):
            return None
        shape = (left.shape[0], right.shape[1])
        return self._new_empty(shape, right, right.dtype)

    def _sparse_sum(
        self, added: torch.Tensor, left: torch.Tensor, right: torch.Tensor, **factors: Any
    ) -> FakeTensor | None:
        return self._sparse_product(left, right)


def _device_of(tensor: torch.Tensor) -> torch.device:
    return tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device


def _is_on_card(tensor: FakeTensor) -> bool:
    return tensor.fake_device.type != "cpu"


def _are_factors(left: torch.Tensor, right: torch.Tensor) -> bool:
    return (
        isinstance(left, FakeTensor)
        and left.fake_device == right.fake_device  # type: ignore[attr-defined]
        and left.dtype == right.dtype
        and left.dtype in _CUSPARSE_DTYPES
        and left.dim() == right.dim() == 2
        and left.shape[1] == right.shape[0]
    )
