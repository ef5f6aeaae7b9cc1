"""Advanced indexing, `tensor[indices]`: reads, writes and the backward pass.

aten/src/ATen/native/TensorAdvancedIndexingUtils.h, `make_info`, for reading and for writing without
accumulation: indices are copied from the host, widened to int64, and made contiguous if those of
several dimensions differ in strides (`AdvancedIndex` in TensorAdvancedIndexing.cpp beside it).
cs336xl_k_ctx128_fullstep shows indices from the host in both directions.

aten/src/ATen/native/cuda/Indexing.cu, `index_put_with_sort_kernel`, for writing with accumulation:
the indices of all dimensions become one linear index, which is sorted with the positions of the
values. cs336med_train_ctx1024 and lm100_train show order and sizes.

There a mask becomes positions, by `nonzero`, which die before the sort (`makeLinearIndex`;
recording sft_dft of fixtures/cuda/public); elsewhere the trace makes the positions.

`torch.use_deterministic_algorithms` has every write of several values sort. Not covered: indices of
non-adjacent dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping
from itertools import chain

import torch

from graphmem.graph import TensorOut
from graphmem.kernel_program import Free, Scratch, Step, Take
from graphmem.op_states import Determinism
from graphmem.torch_releases.differences import INDICES_ARE_LOOKED_AT_ONCE

from .call import Call, Rule, during
from .cub import key_bits
from .filling import fill
from .layout import INDEX_BYTES, is_contiguous, item_bytes, nbytes, numel
from .reduction import aminmax, contiguous_copies, flattened
from .selection import nonzero
from .sorting import storage_of_sort

_MASKS = ("bool", "uint8")
_INDEX_BACKWARD = "IndexBackward0"
"""`index_backward` calls `_index_put_impl_` with `unsafe`; the trace may show `index_put_`."""


def _index(call: Call) -> Iterator[Step]:
    held = yield from _held_indexers(call)
    yield from call.outputs()
    yield from map(Free, reversed(held))


def _index_put(call: Call) -> Iterator[Step]:
    yield from call.outputs()
    steps = _sorting(call) if _sorts(call) else _overwriting(call)
    yield from during(_value_from_host(call), steps)


def _sorts(call: Call) -> bool:
    """Whether the order of writes matters (`_index_put_impl_`, TensorAdvancedIndexing.cpp)."""
    is_asked = call.op.determinism is not Determinism.NONE
    return bool(call.value("accumulate")) or (is_asked and numel(call.tensor("values")) > 1)


def _overwriting(call: Call) -> Iterator[Step]:
    held = yield from _held_indexers(call)
    yield from map(Free, held)


def _value_from_host(call: Call) -> list[Scratch]:
    """A scalar value, which `_index_put_impl_` copies to the card.

    aten/src/ATen/native/TensorAdvancedIndexing.cpp; `x[:, columns] = 0` took a byte of int8 on an
    H100 (fixtures/cuda/scripts/qlora_int8.events.json.gz).
    """
    values = call.tensor("values")
    is_number = not values.shape and _is_on_host(values)
    return [Scratch("the value from the host", nbytes(values))] if is_number else []


def _held_indexers(call: Call) -> Generator[Step, None, list[Scratch]]:
    """Make the copies of indices that `make_info` makes, and return those that stay.

    A vector frees them first to last (R: zoo_yolos). In reading, TensorIterator holds them longer,
    in a list of its own that ends with the last.
    """
    indices = [index for index in call.tensors("indices") if index is not None]
    held: list[Scratch | None] = []
    for index in indices:
        moved = None
        if _is_on_host(index):
            moved = Scratch("indices from the host", nbytes(index))
            yield Take(moved)
        held.append(moved)
    for position, index in enumerate(indices):
        if index.dtype == "int32":
            yield from _replace(held, position, "indices as int64", numel(index))
    if len({_broadcast_strides(index, indices) for index in indices}) > 1:
        count = _count(indices)
        for position, index in enumerate(indices):
            if numel(index) != count or not is_contiguous(index):
                yield from _replace(held, position, "contiguous indices", count)
    return [each for each in held if each is not None]


def _replace(held: list[Scratch | None], at: int, what: str, count: int) -> Iterator[Step]:
    """Make another copy of an index, and drop the previous one."""
    copy = Scratch(what, count * INDEX_BYTES)
    yield Take(copy)
    before, held[at] = held[at], copy
    if before is not None:
        yield Free(before)


def _broadcast_strides(index: TensorOut, indices: list[TensorOut]) -> tuple[int, ...]:
    """The strides of an index after all are expanded to one shape."""
    shape = torch.broadcast_shapes(*(each.shape for each in indices))
    strides = (0,) * (len(shape) - len(index.shape)) + index.stride
    sizes = (1,) * (len(shape) - len(index.shape)) + index.shape
    return tuple(
        0 if size == 1 and wanted != 1 else stride
        for size, stride, wanted in zip(sizes, strides, shape, strict=True)
    )


def _broadcast(index: TensorOut, indices: list[TensorOut]) -> TensorOut:
    shape = torch.broadcast_shapes(*(each.shape for each in indices))
    strides = _broadcast_strides(index, indices)
    return TensorOut(tuple(shape), index.dtype, index.storage, strides)


def _is_on_host(index: TensorOut) -> bool:
    return index.storage is None and numel(index) > 0


def _count(indices: list[TensorOut]) -> int:
    return math.prod(torch.broadcast_shapes(*(index.shape for index in indices)))


def _sorting(call: Call) -> Iterator[Step]:
    is_unsafe = call.value("unsafe") or call.op.autograd_node == _INDEX_BACKWARD
    operands = call.tensor("self"), call.tensors("indices"), call.tensor("values")
    return put_with_sort(call, *operands, is_checked=not is_unsafe)


def put_with_sort(
    call: Call,
    tensor: TensorOut,
    indices: list[TensorOut | None],
    values: TensorOut,
    *,
    is_checked: bool = True,
) -> Iterator[Step]:
    """`index_put_with_sort_kernel`; `is_checked`: whether indices must be within their sizes."""
    copies = contiguous_copies(tensor, "self")
    yield from map(Take, copies)
    mask = next((index for index in indices if index is not None and index.dtype in _MASKS), None)
    positions = []
    if mask is not None:
        indices = _at_positions(tensor, indices, values, mask)
        positions = [Scratch("positions", sum(nbytes(each) for each in indices if each))]
        yield from nonzero(call, mask, map(Take, positions))
    used = [index for index in indices if index is not None]
    count = _count(used)
    linear = Scratch("linear index", count * INDEX_BYTES)
    yield from _linear_index(call, linear, used, count, is_checked=is_checked)
    yield from map(Free, positions)
    copied = _value_copy(tensor, indices, values, count)
    yield from during(copied, _sort(call, tensor, indices, count))
    yield Free(linear)
    yield from map(Free, copies)


def _at_positions(
    tensor: TensorOut, indices: list[TensorOut | None], values: TensorOut, mask: TensorOut
) -> list[TensorOut | None]:
    """`expandTensors`: an index for each dimension of the mask, with an element for each value."""
    at, dims = indices.index(mask), len(mask.shape)
    after = len(tensor.shape) - at - dims
    others = tensor.shape[:at] + tensor.shape[at + dims :]
    count = numel(values) // max(1, math.prod(others))
    position = TensorOut((count,), "int64", mask.storage, (dims,))
    return [*indices[:at], *[position] * dims, *[None] * after]


def _range_check(call: Call, index: TensorOut) -> Iterator[Step]:
    """`wrapIndexOnce`: the largest and the smallest index, each compared with the size.

    From torch 2.13 on one kernel finds both, and both are held while they are compared.
    """
    if INDICES_ARE_LOOKED_AT_ONCE.holds_in(call.runtime.release):
        comparisons = [during([Scratch("comparison", 1)]) for _ in range(2)]
        yield from aminmax(call, index, chain(*comparisons))
        return
    for what in ("greatest", "least"):
        held = [Scratch(f"{what} index", INDEX_BYTES), Scratch("comparison", 1)]
        yield Take(held[0])
        yield from flattened(call, index)
        yield Take(held[1])
        yield from map(Free, reversed(held))


def _linear_index(
    call: Call, linear: Scratch, indices: list[TensorOut], count: int, *, is_checked: bool
) -> Iterator[Step]:
    """`computeLinearIndex`: the first dimension's index becomes the sum of all.

    Indices on the host are wrapped and scaled there.
    """
    for dim, index in enumerate(indices):
        if is_checked and not _is_on_host(index):
            yield from _range_check(call, _broadcast(index, indices))
        wrapped = [] if _is_on_host(index) else [Scratch("wrapped index", count * INDEX_BYTES)]
        scaled = linear if not dim else Scratch("index of a dimension", count * INDEX_BYTES)
        yield from during(wrapped, [Take(scaled)])
        if dim:
            yield Free(scaled)


def _value_copy(
    tensor: TensorOut, indices: list[TensorOut | None], values: TensorOut, count: int
) -> list[Scratch]:
    """The copy of the values, made if they are broadcast or not contiguous."""
    elements = count * _unindexed(tensor.shape, indices)
    if numel(values) == elements and is_contiguous(values):
        return []
    return [Scratch("values for every index", elements * item_bytes(values.dtype))]


def _unindexed(shape: tuple[int, ...], indices: list[TensorOut | None]) -> int:
    """The number of elements that each index selects."""
    padded = [*indices, *[None] * (len(shape) - len(indices))]
    return math.prod(size for size, index in zip(shape, padded, strict=True) if index is None)


def _sort(
    call: Call, tensor: TensorOut, indices: list[TensorOut | None], count: int
) -> Iterator[Step]:
    last = max(i for i, index in enumerate(indices) if index is not None)
    slice_size = math.prod(tensor.shape[last + 1 :])
    bits = key_bits((numel(tensor) - 1) // slice_size if slice_size else 0)
    names = ("sorted indices", "positions before the sort", "positions")
    arrays = [Scratch(name, count * INDEX_BYTES) for name in names]
    sort = during([storage_of_sort(call, count, INDEX_BYTES, INDEX_BYTES, bits)])
    yield from during(arrays, [*fill(call, "int64"), *sort])


RULES: Mapping[str, Rule] = {
    "aten.index": _index,
    "aten._unsafe_index": _index,
    "aten.index_put": _index_put,
    "aten.index_put_": _index_put,
    "aten._index_put_impl_": _index_put,
    "aten._unsafe_index_put": _index_put,
}
