"""The loop that `TensorIterator` builds for a reduction: coalesced dimensions, fastest first.

The rules of `TensorIterator::reduce_op` (aten/src/ATen/TensorIterator.cpp, `reorder_dimensions`,
`coalesce_dimensions`, `can_use_32bit_indexing`, `get_dim_to_split`), applied to the input's
strides:
  (1) reduced dimensions, whose stride in the output is 0, come before the kept ones;
  (2) within each group, dimensions are in ascending order of strides;
  (3) adjacent dimensions that are contiguous with each other, in input and output, become one;
  (4) a loop whose offsets need more than 32 bits is halved along its longest dimension.

Not covered: non-contiguous outputs that the caller passes in.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from graphmem.graph import TensorOut
from graphmem.tensor_iterator import compared, reordered

from .layout import INT32_MAX, contiguous_strides, item_bytes


@dataclass(frozen=True)
class Dim:
    """One dimension of a loop; strides in elements."""

    size: int
    out: int
    inp: int

    @property
    def is_reduced(self) -> bool:
        """Whether its stride in the output is 0."""
        return self.out == 0


@dataclass(frozen=True)
class Loop:
    """A reduction as the kernel sees it.

    Attributes:
        dims: the fastest first, reduced ones before kept ones.
        in_bytes: bytes of one element of the input.
        out_bytes: bytes of one element of the output.
        offset: of the input's first element from the start of its storage, in elements.
    """

    dims: tuple[Dim, ...]
    in_bytes: int
    out_bytes: int
    offset: int

    @property
    def reduced(self) -> int:
        """How many dimensions are reduced [`num_reduce_dims`]."""
        return sum(dim.is_reduced for dim in self.dims)

    @property
    def outputs(self) -> int:
        """How many elements the output has [`num_output_elements`]."""
        return math.prod(dim.size for dim in self.dims if not dim.is_reduced)

    @property
    def inputs_per_output(self) -> int:
        """How many elements go into each output."""
        return math.prod(dim.size for dim in self.dims) // max(1, self.outputs)

    @property
    def output_span(self) -> int:
        """Elements from the first to the last output, as `AccumulationBuffer` counts them."""
        return max([1, *(dim.size * dim.out for dim in self.dims)])

    def parts(self) -> Iterator[Loop]:
        """The loops that run one after the other [`SplitUntil32Bit`]."""
        if self._is_32bit():
            yield self
            return
        longest = max(reversed(range(len(self.dims))), key=self._extent)
        dim = self.dims[longest]
        half = dim.size // 2
        yield from self._narrowed(longest, 0, half).parts()
        yield from self._narrowed(longest, half, dim.size - half).parts()

    def _is_32bit(self) -> bool:
        out = sum((dim.size - 1) * dim.out for dim in self.dims) * self.out_bytes
        inp = sum((dim.size - 1) * dim.inp for dim in self.dims) * self.in_bytes
        elements = math.prod(dim.size for dim in self.dims)
        return max(elements, 1 + out, 1 + inp) <= INT32_MAX

    def _extent(self, index: int) -> int:
        dim = self.dims[index]
        return (dim.size - 1) * max(dim.out * self.out_bytes, dim.inp * self.in_bytes)

    def _narrowed(self, index: int, start: int, size: int) -> Loop:
        dim = self.dims[index]
        dims = (*self.dims[:index], replace(dim, size=size), *self.dims[index + 1 :])
        return replace(self, dims=dims, offset=self.offset + start * dim.inp)


def loop_of(tensor: TensorOut, axes: Collection[int], *, keepdim: bool, out_dtype: str) -> Loop:
    """The loop over `tensor` that reduces `axes`, with a contiguous output."""
    kept = [axis for axis in range(len(tensor.shape)) if axis not in axes]
    if keepdim:
        shape = tuple(1 if axis in axes else size for axis, size in enumerate(tensor.shape))
        strides = dict(enumerate(contiguous_strides(shape)))
        strides |= {axis: 0 for axis in axes if tensor.shape[axis] != 1}
    else:
        shape = tuple(tensor.shape[axis] for axis in kept)
        strides = dict(zip(kept, contiguous_strides(shape), strict=True))
    dims = [
        Dim(size, strides.get(axis, 0), stride)
        for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride, strict=True))
    ]
    merged = tuple(_coalesced(reordered(dims, _should_swap)))
    return Loop(merged, item_bytes(tensor.dtype), item_bytes(out_dtype), tensor.offset)


def _should_swap(first: Dim, second: Dim) -> int:
    if first.is_reduced != second.is_reduced:
        return 1 if second.is_reduced else -1
    return compared(((first.out, second.out), (first.inp, second.inp)), first.size, second.size)


def _coalesced(dims: list[Dim]) -> Iterator[Dim]:
    if not dims:
        return
    merged = dims[0]
    for dim in dims[1:]:
        if _is_one(merged, dim):
            strides = dim if merged.size == 1 else merged
            merged = replace(strides, size=merged.size * dim.size)
        else:
            yield merged
            merged = dim
    yield merged


def _is_one(inner: Dim, outer: Dim) -> bool:
    if inner.size == 1 or outer.size == 1:
        return True
    return inner.size * inner.out == outer.out and inner.size * inner.inp == outer.inp
