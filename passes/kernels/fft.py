"""Copies that Fourier transforms make of their input.

aten/src/ATen/native/cuda/SpectralOps.cpp, names in brackets. All transforms end in `_exec_fft`,
which puts the dimensions that are not transformed first, by falling strides, and makes them one
[`reshape`]: a copy, if no single stride runs through them. cuFFT reads an input with strides, but
not one that repeats elements, nor planes whose strides are no multiples of each other
[`must_clone`, CuFFTPlanCache.h]. The transform from complex to real numbers overwrites its input,
so it always gets a copy [`_fft_c2r_cufft`].

cuFFT's workspace comes from PyTorch's allocator, but only cuFFT knows its size: 0 bytes are
assumed, and listed. Listed too is what transforms keep between their parts: those over more than
three dimensions, and real ones over the first two [`use_optimized_cufft_path`]. Not covered: the
copy of a real input whose address is not a multiple of a complex number's bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import structs

from graphmem.graph import TensorOut
from graphmem.kernel_program import Scratch, Step

from .call import Call, Rule, during
from .layout import contiguous_strides, is_one_run, numel
from .reduction import contiguous_copy

_MOST_DIMENSIONS = 3  # `cufft_max_ndim`
_WORKSPACE = "workspace of cuFFT's transforms"
_BOUND = "only cuFFT knows its size, at most eight times the complex numbers of the transform"


def _complex_input(call: Call) -> Iterator[Step]:
    source = call.tensor("self")
    dims = sorted(call.value("dim"), key=lambda dim: -source.stride[dim])
    yield from call.outputs()
    yield from _transform(call, source, dims, len(dims) <= _MOST_DIMENSIONS)


def _real_input(call: Call) -> Iterator[Step]:
    source, dims = call.tensor("self"), call.value("dim")
    yield from call.outputs()
    yield from _transform(call, source, dims, _is_optimized(dims))


def _real_result(call: Call) -> Iterator[Step]:
    source, dims = call.tensor("self"), call.value("dim")
    cloned = structs.replace(source, stride=contiguous_strides(source.shape))
    yield from call.outputs()
    parts = _transform(call, cloned, dims, _is_optimized(dims))
    yield from during([contiguous_copy(source)], parts)


def _transform(
    call: Call, source: TensorOut, dims: Sequence[int], in_one_part: bool
) -> Iterator[Step]:
    """`_exec_fft` of all dimensions."""
    if not numel(source) or not dims:
        return
    call.leave_out(_WORKSPACE, "0 bytes", _BOUND)
    if not in_one_part:
        call.leave_out("parts of a Fourier transform", "0 bytes", "at most twice the result")
        return
    yield from during(_copy_for(source, dims))


def _copy_for(source: TensorOut, dims: Sequence[int]) -> Iterator[Scratch]:
    strided = list(zip(source.shape, source.stride, strict=True))
    signal = [strided[dim] for dim in dims]
    transformed = {dim % len(strided) for dim in dims}
    batch = [each for dim, each in enumerate(strided) if dim not in transformed]
    batch.sort(key=lambda each: -each[1])
    if not is_one_run(_of(source, batch)) or _must_clone(batch, signal):
        yield contiguous_copy(source)


def _of(source: TensorOut, strided: Sequence[tuple[int, int]]) -> TensorOut:
    shape, stride = tuple(n for n, _ in strided), tuple(step for _, step in strided)
    return structs.replace(source, shape=shape, stride=stride)


def _must_clone(batch: Sequence[tuple[int, int]], signal: Sequence[tuple[int, int]]) -> bool:
    """`as_cufft_embed`: elements must not repeat, and each stride be a multiple of the next."""
    if any(size > 1 and not step for size, step in batch) or not signal[-1][1]:
        return True
    steps = [step for size, step in signal[:-1] if size > 1] + [signal[-1][1]]
    return any(not outer or outer % inner for outer, inner in pairwise(steps))


def _is_optimized(dims: Sequence[int]) -> bool:
    return len(dims) <= _MOST_DIMENSIONS and list(dims[:2]) != [0, 1]


RULES: Mapping[str, Rule] = {
    "aten._fft_c2c": _complex_input,
    "aten._fft_r2c": _real_input,
    "aten._fft_c2r": _real_result,
}
"""The rules, by operator."""
