"""Writing at indices with accumulation: the backward pass of `tensor[indices]`.

aten/src/ATen/native/cuda/Indexing.cu, `index_put_with_sort_kernel`: the indices of all dimensions
become one linear index, which is sorted with the positions of the values. cs336med_train_ctx1024
and lm100_train show order and sizes. Without accumulation `index_put` allocates its result alone.

Not covered: indices that are not next to each other, masks, whose number of indices only a real
run knows (the trace assumes one), and deterministic algorithms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch

from graphmem.graph import TensorOut
from graphmem.kernel_program import Free, Scratch, Step, Take

from .call import Call, Rule, during
from .cub import SORT_NOTE, key_bits, sort_pairs_bytes
from .layout import INDEX_BYTES, is_contiguous, item_bytes, numel
from .reduction import contiguous_copy, flattened

_INDEX_BACKWARD = "IndexBackward0"
"""`index_backward` calls `_index_put_impl_` with `unsafe`; the trace may show `index_put_`."""


def _index_put(call: Call) -> Iterator[Step]:
    yield from call.outputs()
    if call.value("accumulate"):
        yield from _with_sort(call)


def _with_sort(call: Call) -> Iterator[Step]:
    tensor, indices = call.tensor("self"), call.tensors("indices")
    used = [index for index in indices if index is not None]
    count = math.prod(torch.broadcast_shapes(*(index.shape for index in used)))
    copies = [] if is_contiguous(tensor) else [contiguous_copy(tensor, "self")]
    yield from map(Take, copies)
    linear = Scratch("linear index", count * INDEX_BYTES)
    if not (call.value("unsafe") or call.op.autograd_node == _INDEX_BACKWARD):
        yield from _range_checks(call, used)
    yield from _linear_index(linear, len(used), count)
    yield from during(_value_copy(call, indices, count), _sort(call, tensor, indices, count))
    yield Free(linear)
    yield from map(Free, copies)


def _range_checks(call: Call, indices: list[TensorOut]) -> Iterator[Step]:
    """`wrapIndexOnce`: the greatest and the least index, each compared with the size."""
    for index in indices:
        for what in ("greatest", "least"):
            held = [Scratch(f"{what} index", INDEX_BYTES), Scratch("comparison", 1)]
            yield Take(held[0])
            yield from flattened(call, index)
            yield Take(held[1])
            yield from map(Free, reversed(held))


def _linear_index(linear: Scratch, dims: int, count: int) -> Iterator[Step]:
    """`computeLinearIndex`: the first dimension's index becomes the sum of all."""
    for dim in range(dims):
        wrapped = Scratch("wrapped index", count * INDEX_BYTES)
        scaled = linear if not dim else Scratch("index of a dimension", count * INDEX_BYTES)
        yield from (Take(wrapped), Take(scaled), Free(wrapped))
        if dim:
            yield Free(scaled)


def _value_copy(call: Call, indices: list[TensorOut | None], count: int) -> list[Scratch]:
    """The values for every index, copied where they are broadcast or not contiguous."""
    values, shape = call.tensor("values"), call.tensor("self").shape
    elements = count * _unindexed(shape, indices)
    if numel(values) == elements and is_contiguous(values):
        return []
    return [Scratch("values for every index", elements * item_bytes(values.dtype))]


def _unindexed(shape: tuple[int, ...], indices: list[TensorOut | None]) -> int:
    """Elements that each index selects."""
    padded = [*indices, *[None] * (len(shape) - len(indices))]
    return math.prod(size for size, index in zip(shape, padded, strict=True) if index is None)


def _sort(
    call: Call, tensor: TensorOut, indices: list[TensorOut | None], count: int
) -> Iterator[Step]:
    last = max(i for i, index in enumerate(indices) if index is not None)
    slice_size = math.prod(tensor.shape[last + 1 :])
    bits = key_bits((numel(tensor) - 1) // slice_size if slice_size else 0)
    storage = sort_pairs_bytes(count, INDEX_BYTES, INDEX_BYTES, bits, call.runtime.gpu)
    if storage is None:
        call.leave_out("storage of CUB's sort", "0 bytes", SORT_NOTE)
    names = ("sorted indices", "positions before the sort", "positions")
    arrays = [Scratch(name, count * INDEX_BYTES) for name in names]
    yield from during([*arrays, Scratch("storage of CUB's sort", storage or 0)])


RULES: Mapping[str, Rule] = {
    "aten.index_put": _index_put,
    "aten.index_put_": _index_put,
    "aten._index_put_impl_": _index_put,
    "aten._unsafe_index_put": _index_put,
}
