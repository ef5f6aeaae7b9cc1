"""The largest elements of rows: aten/src/ATen/native/cuda/TensorTopK.cu and TensorTopK.cpp.

  (1) If one block handles each row, only a contiguous input is needed.
  (2) Several blocks share a long row (`mbtopk`, chosen by `should_use_multiblock`) and count
      digits; `get_items_per_thread` decides how much of a row each block takes.
  (3) More than 4,096 results are sorted by `sort` and gathered; fewer in place.

fixtures/cuda/operators.jsonl.gz has rows of each kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphmem.graph import TensorOut
from graphmem.kernel_program import Free, Scratch, Step, Take

from .call import Call, Rule, during
from .cub_scans import scan_by_key
from .layout import INDEX_BYTES, ceil_div, item_bytes, numel
from .reduction import contiguous_copies
from .sorting import row

_SORTED_IN_PLACE = 4096
# `should_use_multiblock`: up to this many rows, of at least this length.
_MULTIBLOCK = ((20, 20_000), (40, 10_000), (80, 8_000), (199, 5_000), (799, 3_000), (4_000, 800))
_MULTIBLOCK_MANY_ROWS = 400
_THREADS = 256
_BLOCKS_PER_MULTIPROCESSOR = 6  # 40 registers a thread, 65,536 a multiprocessor
_FEWEST_ITEMS, _MOST_ITEMS = 4, 64  # per thread
_DIGITS = 256
_COUNTER_BYTES = 4


def _topk(call: Call) -> Iterator[Step]:
    tensor = call.tensor("self")
    yield from call.outputs()
    yield from topk(call, tensor, call.value("k"), call.value("dim"), call.value("sorted"))


def topk(call: Call, tensor: TensorOut, k: int, dim: int, is_sorted: bool) -> Iterator[Step]:
    """The scratch memory of `topk_out_cuda`."""
    length = tensor.shape[dim] if tensor.shape else 1
    rows = numel(tensor) // max(1, length)
    copies = contiguous_copies(tensor)
    buffers = _buffers(call, tensor, rows, length) if _is_shared(rows, length) else ()
    sort = _sort(call, tensor, rows, k) if is_sorted and k > _SORTED_IN_PLACE else ()
    yield from during(copies, [*buffers, *sort])


def _is_shared(rows: int, length: int) -> bool:
    """Whether several blocks share a row."""
    for most_rows, least_length in _MULTIBLOCK:
        if rows <= most_rows:
            return length >= least_length
    return length >= _MULTIBLOCK_MANY_ROWS


def _buffers(call: Call, tensor: TensorOut, rows: int, length: int) -> Iterator[Step]:
    """Clause (2): two scans by row find how many results each block writes, and where."""
    blocks = rows * ceil_div(length, _THREADS * _items_per_thread(call, rows, length))
    size = item_bytes(tensor.dtype)
    held = [
        Scratch("least results", rows * size),
        Scratch("results to find", 2 * rows * _COUNTER_BYTES),
        Scratch("digits found", 2 * rows * max(_COUNTER_BYTES, size)),
        Scratch("digits of each block", blocks * _DIGITS * 2),
        Scratch("sums of digits", rows * _DIGITS * _COUNTER_BYTES),
        Scratch("results of each block", blocks * _COUNTER_BYTES),
        Scratch("results like the least", blocks * _COUNTER_BYTES),
    ]
    scans = [step for _ in range(2) for step in during([scan_by_key(call, blocks, 4)])]
    yield from during(held, scans)


def _items_per_thread(call: Call, rows: int, length: int) -> int:
    threads = call.runtime.gpu.multiprocessors * _BLOCKS_PER_MULTIPROCESSOR * _THREADS
    return max(_FEWEST_ITEMS, min(ceil_div(rows * length, threads), _MOST_ITEMS))


def _sort(call: Call, tensor: TensorOut, rows: int, k: int) -> Iterator[Step]:
    """Clause (3)."""
    if rows != 1:
        call.leave_out("storage of CUB's sort", "0 bytes", "several rows of many results")
        return
    results = [
        Scratch("order of the results", k * INDEX_BYTES),
        Scratch("sorted results", k * item_bytes(tensor.dtype)),
    ]
    yield from map(Take, results)
    yield from row(call, k, tensor.dtype)
    yield from during([Scratch("sorted positions", k * INDEX_BYTES)])
    yield from map(Free, reversed(results))


RULES: Mapping[str, Rule] = {"aten.topk": _topk}
