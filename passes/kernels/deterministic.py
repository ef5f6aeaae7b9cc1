"""Writes along a dimension under `torch.use_deterministic_algorithms(True)`: they sort indices.

aten/src/ATen/native/TensorAdvancedIndexing.cpp, `structured_index_copy_out`,
`_scatter_via_index_put`; aten/src/ATen/native/cuda/Indexing.cu, `index_add_cuda_impl`. Those of
torch 2.13.0 ran on a pretended card (docs/exactness.md).

`scatter` along one of several dimensions has an index of each other dimension made, by `arange`,
unless its index is the same along all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from graphmem.graph import TensorOut
from graphmem.kernel_program import Free, Scratch, Step, Take

from .call import Call, Rule, during
from .filling import fill
from .indexing import put_with_sort
from .layout import INDEX_BYTES, nbytes, numel
from .reduction import compact
from .scatter import counting

Indices = list[TensorOut | None]


def _index_add(call: Call) -> Iterator[Step]:
    """`index_put_` with accumulation of the source times `alpha`, which makes a copy of it."""
    source = call.tensor("source")
    scaled = Scratch("the source times alpha", nbytes(source))
    steps = put_with_sort(call, call.tensor("self"), _along(call), compact(source))
    yield from call.outputs()
    yield from during([scaled], steps)


def _index_copy(call: Call) -> Iterator[Step]:
    yield from call.outputs()
    yield from put_with_sort(call, call.tensor("self"), _along(call), call.tensor("source"))


def _along(call: Call) -> Indices:
    """The index of a dimension, after none for those before it."""
    return [*[None] * _dimension(call), call.tensor("index")]


def _dimension(call: Call) -> int:
    return int(call.value("dim")) % max(1, len(call.tensor("self").shape))


def _scatter(call: Call) -> Iterator[Step]:
    """Numbers, products and extrema are scattered as ever."""
    yield from call.outputs()
    source, reduction = call.optional("src"), call.value("reduce")
    sums = reduction in (None, "add", "sum", "mean")
    if source is not None and numel(call.tensor("index")) and sums:
        yield from _via_index_put(call, source)
    if reduction == "mean":
        yield from _count_for_mean(call)


def _count_for_mean(call: Call) -> Iterator[Step]:
    """Ones are scattered in the same way."""
    ones, counts, mask = counting(call, "src")
    adding = _via_index_put(call, compact(call.tensor("src")))
    yield from during([ones, counts], [*adding, *during([mask])])


def _via_index_put(call: Call, source: TensorOut) -> Iterator[Step]:
    tensor, index, at = call.tensor("self"), call.tensor("index"), _dimension(call)
    view = TensorOut(index.shape, source.dtype, source.storage, source.stride)
    dims = range(len(index.shape))
    if len(dims) <= 1 or all(index.stride[dim] == 0 for dim in dims if dim != at):
        size, stride = (index.shape[at:], index.stride[at:]) if dims else ((), ())
        row = TensorOut(size[:1], index.dtype, index.storage, stride[:1])
        yield from put_with_sort(call, tensor, [*[None] * at, row], view)
        return
    made = {
        dim: Scratch("positions along a dimension", index.shape[dim] * INDEX_BYTES)
        for dim in dims
        if dim != at
    }
    yield from chain.from_iterable((Take(each), *fill(call, index.dtype)) for each in made.values())
    indices: Indices = [index if dim == at else _expanded(index, dim) for dim in dims]
    yield from put_with_sort(call, tensor, indices, view)
    yield from map(Free, made.values())


def _expanded(index: TensorOut, dim: int) -> TensorOut:
    """Positions along a dimension, as a view of the index's shape."""
    stride = tuple(int(each == dim) for each in range(len(index.shape)))
    return TensorOut(index.shape, index.dtype, index.storage, stride)


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("aten.index_add", "aten.index_add_"), _index_add),
    **dict.fromkeys(("aten.index_copy", "aten.index_copy_"), _index_copy),
    **dict.fromkeys(("aten.scatter", "aten.scatter_"), _scatter),
    **dict.fromkeys(("aten.scatter_add", "aten.scatter_add_"), _scatter),
    **dict.fromkeys(("aten.scatter_reduce", "aten.scatter_reduce_"), _scatter),
}
