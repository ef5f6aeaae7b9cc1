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
(5) sparse tensors added to dense ones, as SGD does with an embedding's gradient and PEFT's SHiRA
    with its weights (the same file, `add_out_dense_sparse_cuda`), and to sparse ones, which
    concatenates both (`add_out_sparse_cuda`);
(6) `coalesce` of such rows, whose new indices lie in memory for all of the old ones
    (sparse/cuda/SparseCUDATensor.cu, `_coalesce_sparse_cuda`: `indices1D.resize_`), and
    `sparse_mask` of a dense matrix by them (sparse/SparseTensor.cpp), as SparseAdam does. How many
    rows are distinct is known if the indices are; otherwise all are assumed to be, the bound;
(7) `coalesce` and `sparse_mask` of tensors with several sparse dimensions: their indices become one
    number (SparseTensorUtils.cpp, `flatten_indices`), and are not kept;
(8) `sparse_mask` of a coalesced tensor, the derivative of a sparse tensor's values: its indices are
    hashed and looked up (sparse/SparseBinaryOpIntersectionCommon.h).
(9) `to_sparse` of a dense tensor, which looks for what is not zero (sparse/SparseTensor.cpp,
    `dense_to_sparse`); how much is not is known if its values are, otherwise all is assumed to be,
    the bound. `to_dense` adds to zeros (`sparse_to_dense`).

Where a kernel is made of tensors' operations, as in (7) and (8), they run here one by one, and the
operation itself allocates nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem import constructors
from graphmem.trace.special_operators import SpecialOperatorsMode
from graphmem.virtual_device.sparse import parts_of, sorting_bytes, sparse_of

aten = torch.ops.aten

Parts = tuple[torch.Tensor, torch.Tensor]
"""Indices and values."""

_SELECTING = ("Thrust's memory to find distinct indices", "0 bytes", "less than that to sort them")

_SORTED = 2
"""Fewer indices are cloned (sparse/cuda/SparseCUDATensor.cu, `_coalesce_sparse_cuda`)."""

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
            aten.add_.Tensor: self._add_sparse_in_place,
            aten.add.Tensor: self._add_sparse,
            aten._coalesce.default: self._coalesce,
            aten.sparse_mask.default: self._mask,
            aten._to_sparse.default: self._to_sparse,
            aten._to_sparse.sparse_dim: self._to_sparse,
            aten._to_dense.default: self._to_dense,
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

    def _add_sparse_in_place(
        self, dense: torch.Tensor, added: torch.Tensor, **factor: Any
    ) -> torch.Tensor | None:
        """Clause (5): of coalesced tensors, and of rows, nothing is allocated."""
        if _is_sparse_on_card(dense):
            return self._extend(dense, added, **factor)
        if not _is_sparse_on_card(added) or dense.layout is not torch.strided:
            return None
        if dense.shape != added.shape or dense.dtype != added.dtype:
            return None
        if not added.is_coalesced():
            self._as_one_number(parts_of(added)[0], added.shape)
        return dense

    def _extend(
        self, matrix: torch.Tensor, added: torch.Tensor, **factor: Any
    ) -> torch.Tensor | None:
        """A sum in place, as of an embedding's gradients, gets both parts (`alias_into_sparse`)."""
        both = self._add_sparse(matrix, added, **factor)
        if both is not None:
            with torch._C._DisableTorchDispatch():
                matrix.data = both
        return None if both is None else matrix

    def _add_sparse(
        self, first: torch.Tensor, added: torch.Tensor, *, alpha: float = 1
    ) -> torch.Tensor | None:
        """Clause (5)."""
        if not _is_sparse_on_card(added) or first.shape != added.shape:
            return None
        if first.dtype != added.dtype:
            return None
        with self:
            if first.layout is torch.strided:
                result = torch.empty_like(first, memory_format=torch.contiguous_format)
                self._add_sparse_in_place(result, added)
                return result
            (indices, values), (more, new) = parts_of(first), parts_of(added)
            if indices.shape[0] != more.shape[0] or not added._nnz() or not first._nnz():
                return None
            scaled = new if alpha == 1 else new * alpha
            together = (torch.cat([indices, more], 1), torch.cat([values, scaled]))
        return self._of_parts(together, first.shape, has_sums=False)

    def _as_one_number(self, indices: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """`flatten_indices`, without a copy of the indices of rows."""
        if indices.shape[0] == 1:
            return indices
        strides = [math.prod(shape[place + 1 : len(indices)]) for place in range(len(indices))]
        with self:
            factors = torch.tensor(strides, device="cpu").to(_device_of(indices))
            return (indices * factors.unsqueeze(1)).sum(0)

    def _coalesce(self, matrix: torch.Tensor) -> FakeTensor | None:
        indices, values = parts_of(matrix)
        if not _is_sparse_on_card(matrix):
            return None
        if indices.shape[0] == 1:
            return self._coalesce_rows(matrix)
        distinct, count = self._distinct(indices), indices.shape[1]
        with self:
            if count < _SORTED:
                made = (indices.clone(), values.clone())
            else:
                held = [self._as_one_number(indices, matrix.shape)]
                held += [torch.empty_like(indices[0]) for _ in range(2)]
                indices.new_empty(sorting_bytes(count), dtype=torch.uint8)
                self._recorder.assume(*_SELECTING, self._location.place())
                summed = values.new_empty((distinct, *values.shape[1:]))
                made = (indices.new_empty((len(indices), distinct)), summed)
        return self._of_parts(made, matrix.shape, has_sums=True)

    def _coalesce_rows(self, rows: FakeTensor) -> FakeTensor:
        indices: Any
        values: Any
        indices, values = parts_of(rows)
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
            what = (
                "rows of a sparse gradient" if len(indices) == 1 else "indices of a sparse tensor"
            )
            return self.reads.count(f"how many {what} differ", indices.shape[1])
        self.reads.use(known.basis)
        with torch._C._DisableTorchDispatch():
            return int(known.tensor.unique(dim=1).shape[1])

    def _mask(self, values: torch.Tensor, mask: torch.Tensor) -> FakeTensor | None:
        if not _is_sparse_on_card(mask) or values.shape != mask.shape:
            return None
        if values.layout is torch.sparse_coo:
            return self._look_up(values, mask)
        if values.layout is not torch.strided:
            return None
        indices = parts_of(mask)[0]
        return self._pick(values, mask) if len(indices) > 1 else self._mask_by_rows(values, mask)

    def _mask_by_rows(self, dense: torch.Tensor, mask: FakeTensor) -> FakeTensor:
        indices, values = parts_of(mask)
        return sparse_of(
            self._fake_mode,
            self._empty_on(mask.fake_device, indices.shape, indices.dtype),
            self._empty_on(mask.fake_device, values.shape, dense.dtype),
            mask.shape,
            is_coalesced=mask.is_coalesced(),
        )

    def _pick(self, dense: torch.Tensor, mask: FakeTensor) -> FakeTensor:
        """Clause (7): what the indices select, multiplied by an expanded one."""
        indices = parts_of(mask)[0]
        with self:
            one = dense.new_ones(1)
            picked = dense[tuple(indices)]
            copied = indices.clone()
            made = (copied, picked * one)
        return self._of_parts(made, mask.shape, has_sums=mask.is_coalesced())

    def _look_up(self, matrix: torch.Tensor, mask: FakeTensor) -> FakeTensor | None:
        """Clause (8)."""
        count, (indices, _), values = matrix._nnz(), parts_of(mask), parts_of(matrix)[1]
        if not matrix.is_coalesced() or not count or not indices.shape[1]:
            return None
        with self:
            held = [indices.new_empty(max(count, indices.shape[1])), indices.new_empty(count)]
            held.append(indices.new_empty((2, indices.shape[1])))
            indices.new_empty(1)
            shape = (indices.shape[1], *values.shape[1:])
            made = (indices.clone(), values.new_empty(shape))
        return self._of_parts(made, mask.shape, has_sums=mask.is_coalesced())

    def _to_sparse(
        self, dense: torch.Tensor, sparse_dim: int | None = None, **options: Any
    ) -> FakeTensor | None:
        """Clause (9), of all dimensions."""
        is_whole = sparse_dim in (None, dense.dim()) and dense.dim() and not any(options.values())
        if dense.layout is not torch.strided or not is_whole or not isinstance(dense, FakeTensor):
            return None
        if dense.fake_device.type == "cpu":
            return None
        with self:
            indices = dense.nonzero().transpose(0, 1).clone()
            values = dense[tuple(indices)].clone()
        return self._of_parts((indices, values), dense.shape, has_sums=True)

    def _to_dense(
        self, matrix: torch.Tensor, dtype: torch.dtype | None = None, **options: Any
    ) -> torch.Tensor | None:
        if not _is_sparse_on_card(matrix) or dtype not in (None, matrix.dtype):
            return None
        with self:
            dense = parts_of(matrix)[1].new_zeros(matrix.shape)
            self._add_sparse_in_place(dense, matrix)
        return dense

    def _of_parts(self, made: Parts, shape: Sequence[int], *, has_sums: bool) -> FakeTensor:
        indices: Any
        values: Any
        indices, values = made
        return sparse_of(self._fake_mode, indices, values, shape, is_coalesced=has_sums)

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


def _is_sparse_on_card(tensor: torch.Tensor) -> TypeGuard[FakeTensor]:
    is_sparse = isinstance(tensor, FakeTensor) and tensor.layout is torch.sparse_coo
    return is_sparse and tensor.fake_device.type != "cpu"  # type: ignore[attr-defined]


def _are_factors(left: torch.Tensor, right: torch.Tensor) -> bool:
    return (
        isinstance(left, FakeTensor)
        and left.fake_device == right.fake_device  # type: ignore[attr-defined]
        and left.dtype == right.dtype
        and left.dtype in _CUSPARSE_DTYPES
        and left.dim() == right.dim() == 2
        and left.shape[1] == right.shape[0]
    )
