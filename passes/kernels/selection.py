"""Selection by data: positions, masks, distinct values, repetitions, rows without their padding.

aten/src/ATen/native/cuda/Nonzero.cu, IndexKernel.cpp (`masked_select`, `masked_scatter_`),
UniqueCub.cu, aten/src/ATen/native/Repeat.cpp:
  (1) `nonzero` counts the nonzero elements, and selects their positions;
  (2) `masked_select` finds positions with `nonzero`, before it allocates its result;
  (3) `masked_scatter` numbers the elements that the mask selects;
  (4) `_unique2` sorts, with positions for the inverse, and allocates the distinct values as if all
      were distinct; `unique_consecutive` without a dimension does the same without the sort;
  (5) `repeat_interleave` takes running sums of the repetitions, and looks for negative ones: since
      torch 2.15 by their minimum, before by comparing each;
  (6) `_padded_dense_to_jagged_forward`, in nested/cuda/NestedTensorTransformerFunctions.cu,
      allocates the values of the rows, which it does not write, and its result like them
      (fixtures/real/jagged.py on an H200);
  (7) operators without a rule are listed as left out.

The trace decides how much is selected; fixtures/cuda/operators.jsonl.gz shows the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import torch

from graphmem.graph import TensorOut
from graphmem.kernel_program import Free, Output, Scratch, Step, Take
from graphmem.torch_releases.differences import THE_LEAST_REPETITION_IS_LOOKED_AT

from . import cub_scans
from .call import Call, Rule, during
from .layout import INDEX_BYTES, contiguous_strides, is_contiguous, item_bytes, nbytes, numel
from .reduction import contiguous_copies, flattened, logic_kernel
from .sorting import storage_of_sort

_COUNT_BYTES = 4


def _nonzero(call: Call) -> Iterator[Step]:
    yield from nonzero(call, call.tensor("self"), call.outputs())


def nonzero(call: Call, tensor: TensorOut, positions: Iterable[Step]) -> Iterator[Step]:
    """Clause (1); `positions` allocates the result."""
    count = Scratch("number of nonzero elements", _COUNT_BYTES)
    steps: list[Step] = []
    if numel(tensor):
        steps += during([cub_scans.reduction(call, numel(tensor))])
    steps += positions
    if numel(tensor) and tensor.shape:
        steps += during([cub_scans.selection(call, numel(tensor))])
    copies = contiguous_copies(tensor)
    yield from during([*copies, count], steps)


def _masked_select(call: Call) -> Iterator[Step]:
    """Clause (2)."""
    tensor, mask = call.tensor("self"), call.tensor("mask")
    shape = torch.broadcast_shapes(tensor.shape, mask.shape)
    selected = numel(call.op.outputs[0]) if call.op.outputs else 0
    positions = Scratch("positions", selected * INDEX_BYTES * len(shape))
    expanded = TensorOut(shape, mask.dtype, None, mask.stride if mask.shape == shape else ())
    copies = [] if mask.shape == shape else [Scratch("the mask expanded", math.prod(shape))]
    if copies:
        expanded = TensorOut(shape, mask.dtype, None, contiguous_strides(shape))
    yield from during(copies, nonzero(call, expanded, [Take(positions)]))
    yield from call.outputs()
    yield Free(positions)


def _masked_scatter(call: Call) -> Iterator[Step]:
    """Clause (3)."""
    tensor = call.tensor("self")
    yield from call.outputs()
    if not numel(tensor):
        return
    mask = call.tensor("mask")
    held = [Scratch("numbers of the selected elements", numel(tensor) * INDEX_BYTES)]
    if mask.shape != tensor.shape or not is_contiguous(mask):
        held.append(Scratch("the mask expanded", numel(tensor)))
    yield from during([*held, cub_scans.scan(call, numel(tensor), "int64")])


def _unique(call: Call) -> Iterator[Step]:
    """Clause (4)."""
    tensor = call.tensor("self")
    if not numel(tensor) or not call.op.births:
        yield from call.outputs()
    elif tensor.dtype == "bool":
        yield from _left_out(call, "its count and CUB's storage, tens of KiB")
    else:
        copies = contiguous_copies(tensor)
        yield from during(copies, _sorted_and_distinct(call, tensor))


def _sorted_and_distinct(call: Call, tensor: TensorOut) -> Iterator[Step]:
    count, size = numel(tensor), item_bytes(tensor.dtype)
    held = [Scratch("sorted values", nbytes(tensor))]
    yield Take(held[0])
    if call.value("return_inverse"):
        order = Scratch("positions", count * INDEX_BYTES)
        held.append(Scratch("positions before the sort", count * INDEX_BYTES))
        yield from map(Take, (order, held[-1]))
        yield from during([storage_of_sort(call, count, size, INDEX_BYTES)])
        yield Free(order)
    else:
        of_floats = tensor.dtype == "float32"
        yield from during([storage_of_sort(call, count, size, 0, of_floats=of_floats)])
    yield from _distinct(call, tensor, INDEX_BYTES)
    yield from map(Free, reversed(held))


def _distinct(call: Call, tensor: TensorOut, number_bytes: int) -> Iterator[Step]:
    """`compute_unique`: the numbers of the inverse, then distinct values and their counts."""
    values, *others = map(Output, range(len(call.op.births)))
    count = numel(tensor)
    if call.value("return_inverse"):
        yield others.pop(0)
        numbers = Scratch("numbers of distinct values", count * number_bytes)
        yield from during([numbers, cub_scans.sum_of_int32(call, count)])
    yield values
    found = _storage_of_distinct(call, tensor)
    length = Scratch("number of distinct values", INDEX_BYTES)
    yield from during([length], [*others, *during([found])])


def _storage_of_distinct(call: Call, tensor: TensorOut) -> Scratch:
    if call.value("return_counts"):
        return cub_scans.runs(call, numel(tensor))
    return cub_scans.unique(call, numel(tensor), tensor.dtype)


def _unique_consecutive(call: Call) -> Iterator[Step]:
    tensor = call.tensor("self")
    if call.value("dim") is not None:
        yield from _left_out(call, "copies of the input")
    elif not numel(tensor) or not call.op.births:
        yield from call.outputs()
    else:
        copies = contiguous_copies(tensor)
        yield from during(copies, _distinct(call, tensor, _COUNT_BYTES))


def _repeat(call: Call) -> Iterator[Step]:
    """Clause (5)."""
    repeats = call.tensor("repeats")
    count = numel(repeats)
    if not count:
        yield from call.outputs()
        return
    sums = Scratch("sums of repetitions", count * INDEX_BYTES)
    steps: list[Step] = []
    steps += during([cub_scans.scan(call, count, "int64")])
    if call.value("output_size") is None:
        steps += _looks_for_negatives(call, repeats)
    yield from during([sums], [*steps, *call.outputs()])


def _looks_for_negatives(call: Call, repeats: TensorOut) -> Iterator[Step]:
    if THE_LEAST_REPETITION_IS_LOOKED_AT.holds_in(call.runtime.release):
        least = Scratch("the least", item_bytes(repeats.dtype))
        yield from during([least], flattened(call, repeats))
        return
    checks = [Scratch("which are not negative", numel(repeats)), Scratch("whether all are", 1)]
    mask = TensorOut(repeats.shape, "bool", None, (1,))
    yield from during(checks, flattened(call, mask, logic_kernel))


def _without_padding(call: Call) -> Iterator[Step]:
    """Clause (6)."""
    values = Scratch("values of the rows", nbytes(call.op.outputs[0]))
    yield from during([values], call.outputs())


def _left_out(call: Call, value: str) -> Iterator[Step]:
    """Clause (7)."""
    yield from call.outputs()
    call.leave_out(f"scratch memory of {call.name}", "0 bytes", f"no rule yet; {value}")


RULES: Mapping[str, Rule] = {
    "aten.nonzero": _nonzero,
    "aten.masked_select": _masked_select,
    "aten.masked_scatter": _masked_scatter,
    "aten.masked_scatter_": _masked_scatter,
    "aten._unique2": _unique,
    "aten.unique_consecutive": _unique_consecutive,
    "aten.repeat_interleave": _repeat,
    "aten._padded_dense_to_jagged_forward": _without_padding,
    "aten.unique_dim": partial(_left_out, value="sorted copies of the input and of positions"),
}
