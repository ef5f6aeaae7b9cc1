"""Sparse COO matrices: products with dense ones, transposes, coalescing and masks.

  (1) `mm` adds its product to zeros, which live until it returns
      (aten/src/ATen/native/sparse/SparseTensorMath.cpp, `_sparse_mm`); `addmm` adds to its
      argument.
  (2) An uncoalesced operand is coalesced for the duration of the call: indices as one number, their
      order and that of distinct ones, then new values and indices (SparseTensorUtils.cpp,
      `flatten_indices`; sparse/cuda/SparseCUDATensor.cu, `_coalesce_sparse_cuda`). All indices are
      assumed to be distinct, the upper bound. Thrust sorts them in memory of its own
      (`sorting_bytes`); that in which it finds the distinct ones, which is less, is left out.
  (3) The product takes row pointers and column numbers of 4 bytes, a column-major result, and a
      copy of a dense operand that is neither row- nor column-major
      (sparse/cuda/SparseCUDATensorMath.cu, `s_addmm_out_sparse_dense_cuda_worker`;
      SparseBlasLegacy.cpp, `s_addmm_out_csr_sparse_dense_cuda_worker`). cuSPARSE's buffer is left
      out.
  (4) A clone copies values, then indices; so does a transpose, which also takes a row of indices to
      swap two (TensorShape.cpp, `sparse_transpose_`; the order is that of the CPU build's profile).
  (5) `coalesce` of rows does the same as (2), but its new indices are the combined ones.
  (6) A product of a 2:4 sparse matrix by cuSPARSELt has a workspace that the library decides, and
      compressing one a buffer; they are left out (sparse/cuda/cuSPARSELtOps.cpp,
      `_cslt_sparse_mm_impl`, `_cslt_compress`).
  (7) `sparse_mask` of a dense matrix picks its rows, then multiplies them by an expanded one
      (sparse/SparseTensor.cpp, `sparse_mask`; SparseTensorMath.cpp, `apply_op`).

No recording covers these yet: they follow from the source alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from graphmem.graph import SparseOut, TensorOut
from graphmem.kernel_program import Free, Scratch, Step, Take
from graphmem.virtual_device.sparse import sorting_bytes

from .call import Call, Rule, during
from .layout import INDEX_BYTES, contiguous_strides, item_bytes, nbytes

_CUSPARSE_INDEX_BYTES = 4


def mm(call: Call, matrix: SparseOut) -> Iterator[Step]:
    """`_sparse_mm` of a sparse and a dense matrix."""
    zeros = Scratch("zeros that a sparse product is added to", nbytes(call.op.outputs[0]))
    yield from during([zeros], _sum(call, matrix, call.tensor("mat2")))


def addmm(call: Call, matrix: SparseOut) -> Iterator[Step]:
    """`addmm_sparse_dense_cuda`."""
    yield from _sum(call, matrix, call.tensor("mat2"))


def _sparse_addmm(call: Call) -> Iterator[Step]:
    matrix = call.sparse("mat1")
    return call.outputs() if matrix is None else addmm(call, matrix)


def _sum(call: Call, matrix: SparseOut, dense: TensorOut) -> Iterator[Step]:
    result = call.op.outputs[0]
    yield from call.outputs()
    if not matrix.nonzeros:
        yield from during([Scratch("beta", item_bytes(result.dtype))])
        return
    held: list[Scratch] = []
    if not matrix.is_coalesced:
        held = _coalesced(matrix)
        yield from _coalescing(call, matrix, held)
    indices = Scratch("row numbers for cuSPARSE", _CUSPARSE_INDEX_BYTES * matrix.nonzeros)
    rows = Scratch("row pointers of a sparse matrix", _CUSPARSE_INDEX_BYTES * (result.shape[0] + 1))
    columns = Scratch("column numbers for cuSPARSE", _CUSPARSE_INDEX_BYTES * matrix.nonzeros)
    yield from (Take(rows), Take(indices), Free(indices), Take(columns))
    yield from during(_matrices(result, dense))
    call.leave_out(
        "cuSPARSE's buffer for products of a sparse matrix", "0 bytes", "cuSPARSE decides it"
    )
    yield from map(Free, (columns, rows, *reversed(held)))


def _matrices(result: TensorOut, dense: TensorOut) -> Iterator[Scratch]:
    if result.stride != _column_strides(result.shape):
        yield Scratch("result of a sparse product in columns", nbytes(result))
    if dense.stride not in (_column_strides(dense.shape), contiguous_strides(dense.shape)):
        yield Scratch("contiguous copy of an operand", nbytes(dense))


def _column_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (1, shape[0])


def _coalesced(matrix: SparseOut) -> list[Scratch]:
    return [
        Scratch("values of a coalesced operand", item_bytes(matrix.dtype) * matrix.nonzeros),
        Scratch("indices of a coalesced operand", 2 * INDEX_BYTES * matrix.nonzeros),
    ]


def _coalescing(call: Call, matrix: SparseOut, made: list[Scratch]) -> Iterator[Step]:
    row = INDEX_BYTES * matrix.nonzeros
    if matrix.nonzeros == 1:
        yield from map(Take, made)
        return
    factors = Scratch("factors of indices", 2 * INDEX_BYTES)
    multiplied = Scratch("multiplied indices", 2 * row)
    numbers = [Scratch(what, row) for what in _NUMBERS]
    yield from (Take(factors), Take(multiplied), Take(numbers[0]), Free(multiplied), Free(factors))
    yield from map(Take, numbers[1:])
    yield from _sorting(call, matrix)
    yield from map(Take, made)
    yield from map(Free, reversed(numbers))


def _sorting(call: Call, matrix: SparseOut) -> Iterator[Step]:
    what = "Thrust's memory to find distinct indices"
    call.leave_out(what, "0 bytes", "less than that to sort them")
    yield from during([Scratch("Thrust's sort of indices", sorting_bytes(matrix.nonzeros))])


def _clone(call: Call) -> Iterator[Step]:
    steps = list(call.outputs())
    return iter(steps if call.sparse("self") is None else steps[::-1])


def _transpose(call: Call) -> Iterator[Step]:
    matrix = call.sparse("self")
    yield from _clone(call)
    if matrix is not None:
        yield from during([Scratch("row of indices to swap", INDEX_BYTES * matrix.nonzeros)])


def _coalesce(call: Call) -> Iterator[Step]:
    rows = call.sparse("self")
    outputs = list(call.outputs())
    if rows is None or rows.nonzeros < 2 or len(outputs) != 2:
        yield from outputs
        return
    indices, values = outputs
    numbers = [Scratch(what, INDEX_BYTES * rows.nonzeros) for what in _NUMBERS[1:]]
    yield indices
    yield from map(Take, numbers)
    yield from _sorting(call, rows)
    yield values
    yield from map(Free, reversed(numbers))


def _sparse_mask(call: Call) -> Iterator[Step]:
    outputs = list(call.outputs())
    result = call.op.outputs[0]
    if not isinstance(result, SparseOut) or len(outputs) != 2:
        yield from outputs
        return
    picked = result.nonzeros * math.prod(result.shape[1:]) * item_bytes(result.dtype)
    one = Scratch("a one to multiply by", item_bytes(result.dtype))
    yield from during([one, Scratch("rows that a mask picks", picked)], outputs)


_NUMBERS = ("indices as one number", "order of indices", "places of distinct indices")


def _cusparselt(what: str) -> Rule:
    def rule(call: Call) -> Iterator[Step]:
        call.leave_out(f"cuSPARSELt's {what}", "0 bytes", "cuSPARSELt decides it")
        return call.outputs()

    return rule


RULES: Mapping[str, Rule] = {
    "aten._cslt_compress": _cusparselt("buffer to compress a 2:4 sparse matrix"),
    "aten._cslt_sparse_mm": _cusparselt("workspace for products of a 2:4 sparse matrix"),
    "aten._coalesce": _coalesce,
    "aten._sparse_addmm": _sparse_addmm,
    "aten.clone": _clone,
    "aten.sparse_mask": _sparse_mask,
    "aten.t": _transpose,
    "aten.transpose": _transpose,
}
