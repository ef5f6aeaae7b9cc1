"""Sorting and running sums.

aten/src/ATen/native/cuda/Sort.cpp, SortStable.cu, ScanKernels.cpp, ScanUtils.cuh:
  (1) rows of up to 4,096 elements are sorted in place, with a range of positions;
  (2) longer rows are sorted by CUB, which wants the elements of a row side by side; otherwise the
      input and both results get copies in that layout;
      (a) a single row, or rows of a million, are sorted one after the other, with one row's
          positions;
      (b) fewer than 128 rows are sorted all at once, with two arrays of rows and positions, and the
          keys; then both arrays by row;
      (c) more rows are sorted as segments, with all positions;
  (3) running sums convert their input to the result's dtype and make it contiguous; CUB handles a
      single row, but sums by deterministic algorithms begin from those of blocks, one for each
      multiprocessor at most (aten/src/ATen/cuda/cub.cuh, `inclusive_deterministic_scan`; sizes of
      torch 2.13.0 on a pretended card).

ATen/native/BucketizationUtils.h, `searchsorted_maybe_trim_input_tensors`:
  (4) a search makes values, boundaries and their order contiguous, then casts values and boundaries
      to their common dtype.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch

from graphmem.graph import TensorOut
from graphmem.kernel_program import Free, Scratch, Step, Take
from graphmem.op_states import Determinism

from . import cub_scans
from .call import Call, Rule, during
from .cub import SORT_NOTE, segmented_sort_pairs_bytes, sort_pairs_bytes
from .filling import fill
from .layout import (
    INDEX_BYTES,
    INT32_MAX,
    ceil_div,
    is_contiguous,
    item_bytes,
    nbytes,
    numel,
)
from .reduction import compact, contiguous_copy

_SORTED_IN_PLACE = 4096
_SORTED_ROW_BY_ROW_FROM = 1_000_000
_SORTED_EACH_FROM = 128
_PAIR_BYTES = 8  # int2
_SUMMING_THREADS = 512
_SUMMED_BY_A_THREAD = (16, 8)  # numbers of up to four bytes, and larger ones
_FLOAT_BYTES = 4


def _sort(call: Call) -> Iterator[Step]:
    tensor = call.tensor("self")
    length = _length(call, tensor)
    yield from call.outputs()
    if length <= _SORTED_IN_PLACE:
        yield from _with_positions(call, length)
    else:
        copies = _copies_with_rows_side_by_side(call, tensor)
        yield from during(copies, _sort_by_cub(call, tensor, length))


def _copies_with_rows_side_by_side(call: Call, tensor: TensorOut) -> list[Scratch]:
    """Copies of the input, and of results with a different layout."""
    dim = call.value("dim") % max(1, len(tensor.shape))
    copies = [] if tensor.stride[dim] == 1 else [contiguous_copy(tensor)]
    if copies and call.op.outputs[0].stride[dim] != 1:
        copies.append(Scratch("sorted values", nbytes(tensor)))
        copies.append(Scratch("sorted positions", numel(tensor) * INDEX_BYTES))
    return copies


def _sort_by_cub(call: Call, tensor: TensorOut, length: int) -> Iterator[Step]:
    """Clause (2), in parts of at most 2^31 - 1 elements (`do_launch_stable_sort_kernel`)."""
    remaining = numel(tensor)
    part = min(remaining, INT32_MAX) // length * length
    while remaining:
        count = min(remaining, part)
        rows = count // length
        if rows == 1 or length >= _SORTED_ROW_BY_ROW_FROM:
            yield from _sort_rows(call, tensor, length, rows)
        elif rows < _SORTED_EACH_FROM:
            yield from _sort_at_once(call, tensor, length, count)
        else:
            yield from _sort_each(tensor, count)
        remaining -= count


def _sort_rows(call: Call, tensor: TensorOut, length: int, rows: int) -> Iterator[Step]:
    """Clause (2a)."""
    storage = _storage(call, tensor, length)
    steps = [step for _ in range(rows) for step in during([storage])]
    yield from _with_positions(call, length, steps)


def _sort_at_once(call: Call, tensor: TensorOut, length: int, count: int) -> Iterator[Step]:
    """Clause (2b)."""
    pairs = [Scratch("rows and positions", count * _PAIR_BYTES) for _ in range(2)]
    keys = Scratch("sorted keys", count * item_bytes(tensor.dtype))
    bits = max(1, (count // length - 1).bit_length())
    by_row = storage_of_sort(call, count, _PAIR_BYTES, 0, bits)
    steps = [*during([keys, _storage(call, tensor, count)]), *during([by_row])]
    yield from during(pairs, steps)


def _sort_each(tensor: TensorOut, count: int) -> Iterator[Step]:
    """Clause (2c)."""
    storage = segmented_sort_pairs_bytes(count, item_bytes(tensor.dtype), INDEX_BYTES)
    positions = Scratch("positions", count * INDEX_BYTES)
    yield from during([positions, Scratch("storage of CUB's sort", storage)])


def sorted_rows(call: Call, tensor: TensorOut) -> Iterator[Step]:
    """The scratch memory that `sort` takes for contiguous rows."""
    length = tensor.shape[-1] if tensor.shape else 1
    if length > _SORTED_IN_PLACE:
        yield from _sort_by_cub(call, tensor, length)
    else:
        yield from _with_positions(call, length)


def _with_positions(call: Call, length: int, steps: Iterable[Step] = ()) -> Iterator[Step]:
    """The positions in a row, made by `arange`, and what is done with them."""
    positions = Scratch("positions", length * INDEX_BYTES)
    yield from during([positions], [*fill(call, "int64"), *steps])


def row(call: Call, count: int, dtype: str) -> Iterator[Step]:
    """The scratch memory that `sort` takes for one contiguous row."""
    held = [Scratch("positions", count * INDEX_BYTES)]
    if count > _SORTED_IN_PLACE:
        held.append(storage_of_sort(call, count, item_bytes(dtype), INDEX_BYTES))
    yield from during(held)


def _storage(call: Call, tensor: TensorOut, count: int) -> Scratch:
    return storage_of_sort(call, count, item_bytes(tensor.dtype), INDEX_BYTES)


def storage_of_sort(
    call: Call,
    count: int,
    key_bytes: int,
    value_bytes: int,
    bits: int | None = None,
    *,
    of_floats: bool = False,
) -> Scratch:
    """CUB's storage to sort by `bits` of the keys, all by default."""
    by = 8 * key_bytes if bits is None else bits
    card = call.runtime.gpu
    storage = sort_pairs_bytes(count, key_bytes, value_bytes, by, card, of_floats=of_floats)
    if storage is None:
        call.leave_out("storage of CUB's sort", "0 bytes", SORT_NOTE)
    return Scratch("storage of CUB's sort", storage or 0)


def _running(call: Call) -> Iterator[Step]:
    """Clause (3)."""
    tensor, out = call.tensor("self"), call.op.outputs[0]
    yield from call.outputs()
    held = []
    if tensor.dtype != out.dtype:
        tensor = compact(tensor, out.dtype)
        held.append(Scratch(f"the input as {out.dtype}", nbytes(tensor)))
    if not is_contiguous(tensor):
        held.append(contiguous_copy(tensor))
    if tensor.shape and numel(tensor) and numel(tensor) == _length(call, tensor):
        held.append(_scan(call, tensor))
    yield from during(held)


def _scan(call: Call, tensor: TensorOut) -> Scratch:
    kind = getattr(torch, tensor.dtype)
    is_exact = not (kind.is_floating_point or kind.is_complex)
    if call.op.determinism is Determinism.NONE or is_exact or call.name != "aten.cumsum":
        return cub_scans.scan(call, numel(tensor), tensor.dtype)
    size = item_bytes(tensor.dtype)
    items = _SUMMED_BY_A_THREAD[size > _FLOAT_BYTES] * _SUMMING_THREADS
    blocks = min(ceil_div(numel(tensor), items), call.runtime.gpu.multiprocessors)
    return Scratch("a block's sum", blocks * size)


def _length(call: Call, tensor: TensorOut) -> int:
    return tensor.shape[call.value("dim")] if tensor.shape else 1


def _searched(call: Call) -> Iterator[Step]:
    """Clause (4); each cast takes the place of the contiguous copy that it reads."""
    yield from call.outputs()
    boundaries = "boundaries" if call.name == "aten.bucketize" else "sorted_sequence"
    given = {name: call.optional(name) for name in ("self", boundaries, "sorter")}
    operands = {name: tensor for name, tensor in given.items() if tensor is not None}
    held = {
        name: contiguous_copy(tensor, name)
        for name, tensor in operands.items()
        if not is_contiguous(tensor)
    }
    yield from map(Take, held.values())
    searched = [operands[name] for name in ("self", boundaries) if name in operands]
    common = _common_dtype(searched)
    for name in ("self", boundaries):
        if name in operands and operands[name].dtype != common:
            size = numel(operands[name]) * item_bytes(common)
            cast = Scratch(f"{name} as {common}", size)
            yield Take(cast)
            if name in held:
                yield Free(held[name])
            held[name] = cast
    yield from (Free(held[name]) for name in ("sorter", boundaries, "self") if name in held)


def _common_dtype(tensors: list[TensorOut]) -> str:
    """The dtype that PyTorch promotes to; tensors without dimensions weigh less."""
    empty = [
        torch.empty((0,) * len(each.shape), dtype=getattr(torch, each.dtype), device="meta")
        for each in tensors
    ]
    return str(torch.result_type(empty[0], empty[-1])).removeprefix("torch.")


RULES: Mapping[str, Rule] = {
    "aten.sort": _sort,
    "aten.cumsum": _running,
    "aten.cumprod": _running,
    "aten.logcumsumexp": _running,
    "aten.bucketize": _searched,
    "aten.searchsorted": _searched,
}
