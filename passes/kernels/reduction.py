"""Reductions: sums, means, norms, products, extrema, any and all, variances.

All of them run `gpu_reduce_kernel`, whose staging buffer depends on the input's strides (see
`staging`). Per operator: bytes of the accumulator, and how many elements a thread loads at once
(aten/src/ATen/native/cuda/ReduceSumProdKernel.cu, ReduceMomentKernel.cu, ReduceNormKernel.cu,
ReduceMaxValuesKernel.cu, ReduceArgMaxKernel.cu, ReduceLogicKernel.cu).

  (1) `sum`, `mean`, `prod` and norms that return another type than they are given convert their
      input first, a full copy, unless they turn 16 bits into float32
      (aten/src/ATen/native/ReduceOps.cpp, `make_reduction`).
  (2) `max` and `min` without a dimension, and `argmax` and `argmin` without one, make their input
      contiguous.
  (3) `logsumexp` has the maxima, their mask, and the exponentials of the whole input.

Not covered: `median`, `mode`, `kthvalue`, `aminmax`, complex numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from graphmem.graph import TensorOut
from graphmem.kernel_program import Free, Scratch, Step, Take

from .call import Call, Rule, during
from .iteration import loop_of
from .layout import (
    INDEX_BYTES,
    accumulate_bytes,
    contiguous_strides,
    is_contiguous,
    is_dense,
    is_half,
    item_bytes,
    nbytes,
    numel,
)
from .staging import Kernel, reduction_scratch

# PR #165055, merged in October 2025: sum and mean of 16-bit types.
_WIDE_HALF_VECTORS_SINCE = (2, 10)
_WIDE_HALF_VECTOR = 8
_WELFORD_VECTOR = 2
_VALUE_AND_INDEX_BYTES = 16

KernelOf = Callable[[Call, TensorOut], Kernel]


def sum_kernel(call: Call, tensor: TensorOut) -> Kernel:
    """The kernel of `sum` and `mean`; 16-bit results are gathered in float32."""
    halves = is_half(tensor.dtype)
    is_wide = halves and call.runtime.release >= _WIDE_HALF_VECTORS_SINCE
    return Kernel(
        accumulate_bytes(tensor.dtype),
        _WIDE_HALF_VECTOR if is_wide else 4,
        accumulates_in_output=not halves,
    )


def _accumulating_kernel(call: Call, tensor: TensorOut) -> Kernel:
    """Products and norms."""
    halves = is_half(tensor.dtype)
    return Kernel(accumulate_bytes(tensor.dtype), accumulates_in_output=not halves)


def _value_kernel(call: Call, tensor: TensorOut) -> Kernel:
    """The greatest or least value, in the input's own type."""
    return Kernel(item_bytes(tensor.dtype), accumulates_in_output=not is_half(tensor.dtype))


def _index_kernel(call: Call, tensor: TensorOut) -> Kernel:
    """The greatest or least value with its index: a pair."""
    return Kernel(_VALUE_AND_INDEX_BYTES, accumulates_in_output=False)


def _logic_kernel(call: Call, tensor: TensorOut) -> Kernel:
    """A bool."""
    return Kernel(1)


def _welford_kernel(call: Call, tensor: TensorOut) -> Kernel:
    """`WelfordData`: mean, second moment and two counters, 16 bytes, or 32 for float64."""
    is_double = tensor.dtype == "float64"
    return Kernel(32 if is_double else 16, _WELFORD_VECTOR, accumulates_in_output=False)


def axes_of(value: object, tensor: TensorOut) -> list[int]:
    """Dimensions as an argument names them: a number, some, or all where none is given."""
    rank = len(tensor.shape)
    if value is None or value in ([], ()):
        return list(range(rank))
    dims = value if isinstance(value, (list, tuple)) else [value]
    return [dim % rank for dim in dims] if rank else []


def reduced(
    call: Call,
    tensor: TensorOut,
    dims: object = None,
    *,
    kernel_of: KernelOf = sum_kernel,
    keepdim: bool = False,
    out_dtype: str | None = None,
) -> Iterator[Step]:
    """The scratch memory of one reduction of a tensor."""
    axes = axes_of(dims, tensor)
    loop = loop_of(tensor, axes, keepdim=keepdim, out_dtype=out_dtype or tensor.dtype)
    yield from reduction_scratch(loop, kernel_of(call, tensor), call.runtime.gpu)


def compact(tensor: TensorOut, dtype: str | None = None) -> TensorOut:
    """What `to(dtype)` or `empty_like` makes: the same layout where it is dense, else row-major."""
    strides = tensor.stride if is_dense(tensor) else contiguous_strides(tensor.shape)
    return TensorOut(tensor.shape, dtype or tensor.dtype, None, strides)


def _converting(call: Call, kernel_of: KernelOf) -> Iterator[Step]:
    """Clause (1)."""
    tensor, out_dtype = call.tensor("self"), call.op.outputs[0].dtype
    yield from call.outputs()
    is_fused = tensor.dtype == out_dtype or (is_half(tensor.dtype) and out_dtype == "float32")
    held = []
    if not is_fused:
        tensor = compact(tensor, out_dtype)
        held.append(Scratch(f"the input as {out_dtype}", nbytes(tensor)))
    yield from during(held, _over_dims(call, tensor, kernel_of))


def _plain(call: Call, kernel_of: KernelOf) -> Iterator[Step]:
    tensor = call.tensor("self")
    yield from call.outputs()
    yield from _over_dims(call, tensor, kernel_of)


def _over_dims(call: Call, tensor: TensorOut, kernel_of: KernelOf) -> Iterator[Step]:
    return reduced(
        call,
        tensor,
        call.value("dim"),
        kernel_of=kernel_of,
        keepdim=bool(call.value("keepdim")),
        out_dtype=call.op.outputs[0].dtype,
    )


def _extremum(call: Call) -> Iterator[Step]:
    """Clause (2): of everything where there is no dimension."""
    if call.value("dim") is None:
        return _flat(call, _value_kernel)
    return _plain(call, _index_kernel)


def _arg_extremum(call: Call) -> Iterator[Step]:
    if call.value("dim") is None:
        return _flat(call, _index_kernel)
    return _plain(call, _index_kernel)


def _flat(call: Call, kernel_of: KernelOf) -> Iterator[Step]:
    tensor = call.tensor("self")
    yield from call.outputs()
    held = [] if is_contiguous(tensor) else [contiguous_copy(tensor)]
    flat = TensorOut((numel(tensor),), tensor.dtype, None, (1,), 0 if held else tensor.offset)
    yield from during(held, reduced(call, flat, kernel_of=kernel_of))


def contiguous_copy(tensor: TensorOut, what: str = "the input") -> Scratch:
    """The scratch of `tensor.contiguous()` where it copies."""
    return Scratch(f"contiguous copy of {what}", nbytes(tensor))


def _count_nonzero(call: Call) -> Iterator[Step]:
    """`count_nonzero_cuda`: the sum of a mask, which is converted to int64."""
    mask = compact(call.tensor("self"), "bool")
    counted = compact(mask, "int64")
    held = Scratch("mask of what is not 0", numel(mask))
    yield Take(held)
    yield from call.outputs()
    copy = Scratch("the mask as int64", numel(mask) * INDEX_BYTES)
    yield from during([copy], reduced(call, counted, call.value("dim")))
    yield Free(held)


def _logsumexp(call: Call) -> Iterator[Step]:
    """Clause (3), `logsumexp_out_impl`."""
    tensor, dims = call.tensor("self"), call.value("dim")
    size = item_bytes(tensor.dtype)
    rows = numel(call.op.outputs[0])
    maxima = Scratch("maxima", rows * size)
    yield Take(maxima)
    yield from reduced(call, tensor, dims, kernel_of=_value_kernel, keepdim=True)
    yield from during([Scratch("magnitudes of maxima", rows * size), Scratch("mask", rows)])
    exponentials = compact(tensor)
    with_exponentials = Scratch("exponentials", nbytes(exponentials))
    yield Take(with_exponentials)
    yield from call.outputs()
    yield from reduced(call, exponentials, dims, keepdim=bool(call.value("keepdim")))
    yield Free(with_exponentials)
    yield Free(maxima)


RULES: Mapping[str, Rule] = {
    "aten.sum": partial(_converting, kernel_of=sum_kernel),
    "aten.nansum": partial(_converting, kernel_of=_accumulating_kernel),
    "aten.mean": partial(_converting, kernel_of=sum_kernel),
    "aten.prod": partial(_converting, kernel_of=_accumulating_kernel),
    "aten.norm": partial(_converting, kernel_of=_accumulating_kernel),
    "aten.linalg_vector_norm": partial(_converting, kernel_of=_accumulating_kernel),
    "aten.amax": partial(_plain, kernel_of=_value_kernel),
    "aten.amin": partial(_plain, kernel_of=_value_kernel),
    "aten.any": partial(_plain, kernel_of=_logic_kernel),
    "aten.all": partial(_plain, kernel_of=_logic_kernel),
    "aten.max": _extremum,
    "aten.min": _extremum,
    "aten.argmax": _arg_extremum,
    "aten.argmin": _arg_extremum,
    "aten.var": partial(_plain, kernel_of=_welford_kernel),
    "aten.std": partial(_plain, kernel_of=_welford_kernel),
    "aten.var_mean": partial(_plain, kernel_of=_welford_kernel),
    "aten.std_mean": partial(_plain, kernel_of=_welford_kernel),
    "aten.count_nonzero": _count_nonzero,
    "aten.logsumexp": _logsumexp,
}
