"""Sorting, the greatest elements, running sums, and what selects by data.

aten/src/ATen/native/cuda/Sort.cpp, SortStable.cu, Sorting.cpp, TensorTopK.cu, ScanKernels.cpp:
  (1) up to 4,096 elements `sort` works in place, with a range of positions;
  (2) longer rows are sorted by CUB, which wants the elements of a row side by side: else the input
      and both results get copies of that layout;
      (a) a single row, or rows of a million, one after the other, with the positions of a row;
      (b) fewer than 128 rows all at once, with two arrays of rows and positions, and the keys;
      (c) more of them each on its own, with all positions;
  (3) running sums convert their input to the result's type and make it contiguous;
  (4) what the rules do not know is left out by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from graphmem.graph import TensorOut
from graphmem.kernel_program import Scratch, Step

from .call import Call, Rule, during
from .cub import SMALL_NOTE, SORT_NOTE, segmented_sort_pairs_bytes, sort_pairs_bytes
from .layout import INDEX_BYTES, is_contiguous, item_bytes, nbytes, numel
from .reduction import compact, contiguous_copy

_SORTED_IN_PLACE = 4096
_SORTED_ROW_BY_ROW_FROM = 1_000_000
_SORTED_EACH_FROM = 128
_LARGEST_INT = 2**31 - 1
_PAIR_BYTES = 8  # int2
# `mbtopk::should_use_multiblock`: up to so many rows of at least this length.
_TOPK_MULTIBLOCK = (
    (20, 20_000),
    (40, 10_000),
    (80, 8_000),
    (199, 5_000),
    (799, 3_000),
    (4_000, 800),
)
_TOPK_MULTIBLOCK_MANY_ROWS = 400


def _sort(call: Call) -> Iterator[Step]:
    tensor = call.tensor("self")
    length = _length(call, tensor)
    yield from call.outputs()
    if length <= _SORTED_IN_PLACE:
        yield from during([Scratch("positions", length * INDEX_BYTES)])
    else:
        copies = _copies_with_rows_side_by_side(call, tensor)
        yield from during(copies, _sort_by_cub(call, tensor, length))


def _copies_with_rows_side_by_side(call: Call, tensor: TensorOut) -> list[Scratch]:
    """Of the input, and of results that lie in another order."""
    dim = call.value("dim") % max(1, len(tensor.shape))
    copies = [] if tensor.stride[dim] == 1 else [contiguous_copy(tensor)]
    if copies and call.op.outputs[0].stride[dim] != 1:
        copies.append(Scratch("sorted values", nbytes(tensor)))
        copies.append(Scratch("sorted positions", numel(tensor) * INDEX_BYTES))
    return copies


def _sort_by_cub(call: Call, tensor: TensorOut, length: int) -> Iterator[Step]:
    """Clause (2), in parts of at most 2^31 - 1 elements (`do_launch_stable_sort_kernel`)."""
    remaining = numel(tensor)
    part = min(remaining, _LARGEST_INT) // length * length
    while remaining:
        count = min(remaining, part)
        rows = count // length
        if rows == 1 or length >= _SORTED_ROW_BY_ROW_FROM:
            yield from _sort_rows(call, tensor, length, rows)
        elif rows < _SORTED_EACH_FROM:
            yield from _sort_at_once(call, tensor, count)
        else:
            yield from _sort_each(tensor, count)
        remaining -= count


def _sort_rows(call: Call, tensor: TensorOut, length: int, rows: int) -> Iterator[Step]:
    """Clause (2a)."""
    storage = _storage(call, tensor, length)
    steps = [step for _ in range(rows) for step in during([storage])]
    yield from during([Scratch("positions", length * INDEX_BYTES)], steps)


def _sort_at_once(call: Call, tensor: TensorOut, count: int) -> Iterator[Step]:
    """Clause (2b); the second sort, by rows alone, takes less than the first and is left out."""
    pairs = [Scratch("rows and positions", count * _PAIR_BYTES) for _ in range(2)]
    keys = Scratch("sorted keys", count * item_bytes(tensor.dtype))
    yield from during([*pairs, keys, _storage(call, tensor, count)])


def _sort_each(tensor: TensorOut, count: int) -> Iterator[Step]:
    """Clause (2c)."""
    storage = segmented_sort_pairs_bytes(count, item_bytes(tensor.dtype), INDEX_BYTES)
    positions = Scratch("positions", count * INDEX_BYTES)
    yield from during([positions, Scratch("storage of CUB's sort", storage)])


def _storage(call: Call, tensor: TensorOut, count: int) -> Scratch:
    key = item_bytes(tensor.dtype)
    storage = sort_pairs_bytes(count, key, INDEX_BYTES, key * 8, call.runtime.gpu)
    if storage is None:
        call.leave_out("storage of CUB's sort", "0 bytes", SORT_NOTE)
    return Scratch("storage of CUB's sort", storage or 0)


def _topk(call: Call) -> Iterator[Step]:
    tensor = call.tensor("self")
    yield from call.outputs()
    length = _length(call, tensor)
    rows = numel(tensor) // max(1, length)
    if call.value("k") <= _SORTED_IN_PLACE and not _is_shared_topk(rows, length):
        yield from during([] if is_contiguous(tensor) else [contiguous_copy(tensor)])
    else:
        call.leave_out(
            "scratch memory of aten.topk",
            "0 bytes",
            "rows this long are shared by several blocks, or many results sorted: no rule yet; at "
            "most a few times the input",
        )


def _is_shared_topk(rows: int, length: int) -> bool:
    """Whether several blocks share a row."""
    for most_rows, least_length in _TOPK_MULTIBLOCK:
        if rows <= most_rows:
            return length >= least_length
    return length >= _TOPK_MULTIBLOCK_MANY_ROWS


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
    if numel(tensor) == _length(call, tensor):
        call.leave_out("storage of CUB's scan", "0 bytes", SMALL_NOTE)
    yield from during(held)


def _length(call: Call, tensor: TensorOut) -> int:
    return tensor.shape[call.value("dim")] if tensor.shape else 1


def _left_out(call: Call, value: str) -> Iterator[Step]:
    """Clause (4)."""
    yield from call.outputs()
    call.leave_out(f"scratch memory of {call.name}", "0 bytes", f"no rule yet; {value}")


RULES: Mapping[str, Rule] = {
    "aten.sort": _sort,
    "aten.topk": _topk,
    "aten.cumsum": _running,
    "aten.cumprod": _running,
    **{
        f"aten.{name}": partial(_left_out, value=value)
        for name, value in {
            "nonzero": "its count and CUB's storage, tens of KiB",
            "masked_select": "its count and CUB's storage, tens of KiB",
            "_unique2": "sorted copies of the input and of positions",
            "unique_dim": "sorted copies of the input and of positions",
            "unique_consecutive": "copies of the input",
            "multinomial": "up to three times the input",
            "randperm": "up to three times the result",
            "kthvalue": "a copy of the input at most",
            "median": "a sorted copy of the input and of positions",
            "mode": "sorted copies of the input and of positions",
            "bincount": "its result at most",
            "aminmax": "a staging buffer of a reduction",
        }.items()
    },
}
