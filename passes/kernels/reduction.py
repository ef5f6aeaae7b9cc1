"""Reductions: sums, means, norms, products, extrema, any and all, variances.

All of them run `gpu_reduce_kernel`, whose staging buffer depends on the input's strides (see
`staging`) and on the bytes of the accumulator (aten/src/ATen/native/cuda/ReduceSumProdKernel.cu,
ReduceMomentKernel.cu, ReduceNormKernel.cu, ReduceMaxValuesKernel.cu, ReduceArgMaxKernel.cu,
ReduceLogicKernel.cu).

  (1) `sum`, `mean`, `prod` and norms whose result has a different dtype convert their input first,
      a full copy, unless they turn 16 bits into float32 (aten/src/ATen/native/ReduceOps.cpp,
      `make_reduction`); complex numbers stay complex, as where a norm is real.
  (2) `max`, `min`, `argmax`, `argmin` and `aminmax` without a dimension make their input
      contiguous.
  (3) `logsumexp` allocates the maxima, their mask, and the exponentials of the whole input.
  (4) `any` and `all` of a single element convert it (ReduceOps.cpp, `allany_impl`).

Not covered: complex numbers, but for clause (1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from graphmem.graph import TensorOut
from graphmem.kernel_program import Free, Scratch, Step, Take

from .call import Call, Rule, during
from .filling import fill
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

_VALUE_AND_INDEX_BYTES = 16
_COMPLEX_AS_WIDE = {"float32": "complex64", "float64": "complex128"}

KernelOf = Callable[[TensorOut], Kernel]


def sum_kernel(tensor: TensorOut) -> Kernel:
    """Sums, means, products and norms; 16-bit ones accumulate in float32."""
    halves = is_half(tensor.dtype)
    return Kernel(accumulate_bytes(tensor.dtype), accumulates_in_output=not halves)


def value_kernel(tensor: TensorOut) -> Kernel:
    """The largest or smallest value, in the input's dtype."""
    return Kernel(item_bytes(tensor.dtype), accumulates_in_output=not is_half(tensor.dtype))


def index_kernel(tensor: TensorOut) -> Kernel:
    """The largest or smallest value with its index: a pair."""
    return Kernel(_VALUE_AND_INDEX_BYTES, accumulates_in_output=False)


def extrema_kernel(tensor: TensorOut) -> Kernel:
    """`aminmax`: the smallest and the largest value, a pair in the input's dtype."""
    return Kernel(2 * item_bytes(tensor.dtype), accumulates_in_output=False)


def logic_kernel(tensor: TensorOut) -> Kernel:
    """`any` and `all`: a bool."""
    return Kernel(1)


def _welford_kernel(tensor: TensorOut) -> Kernel:
    """`WelfordData`: mean, second moment and two counters, 16 bytes, or 32 for float64."""
    is_double = tensor.dtype == "float64"
    return Kernel(32 if is_double else 16, accumulates_in_output=False)


def axes_of(value: Any, tensor: TensorOut) -> list[int]:
    """The dimensions that an argument names: a number, a list, or all if none is given."""
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
    yield from reduction_scratch(loop, kernel_of(tensor), call.runtime.gpu)


def compact(tensor: TensorOut, dtype: str | None = None) -> TensorOut:
    """The result of `to(dtype)` or `empty_like`: the same layout if dense, else row-major."""
    strides = tensor.stride if is_dense(tensor) else contiguous_strides(tensor.shape)
    return TensorOut(tensor.shape, dtype or tensor.dtype, None, strides)


def _converting(call: Call) -> Iterator[Step]:
    """Clause (1)."""
    yield from call.outputs()
    out_dtype = call.op.outputs[0].dtype
    keepdim = bool(call.value("keepdim"))
    tensor = call.tensor("self")
    yield from converted_sum(call, tensor, out_dtype, call.value("dim"), keepdim=keepdim)


def converted_sum(
    call: Call, tensor: TensorOut, out_dtype: str, dims: object = None, *, keepdim: bool = False
) -> Iterator[Step]:
    """The scratch memory of a sum in `out_dtype`, by clause (1)."""
    is_complex = tensor.dtype.startswith("complex")
    in_dtype = _COMPLEX_AS_WIDE.get(out_dtype, out_dtype) if is_complex else out_dtype
    is_fused = tensor.dtype == in_dtype or (is_half(tensor.dtype) and in_dtype == "float32")
    held = []
    if not is_fused:
        tensor = compact(tensor, in_dtype)
        held.append(Scratch(f"the input as {in_dtype}", nbytes(tensor)))
    sums = reduced(call, tensor, dims, keepdim=keepdim, out_dtype=out_dtype)
    yield from during(held, sums)


def _plain(call: Call, kernel_of: KernelOf) -> Iterator[Step]:
    tensor = call.tensor("self")
    yield from call.outputs()
    yield from _over_dims(call, tensor, kernel_of)


def _logic(call: Call) -> Iterator[Step]:
    """Clause (4)."""
    tensor = call.tensor("self")
    if numel(tensor) != 1:
        yield from _plain(call, logic_kernel)
        return
    yield from call.outputs()
    if tensor.dtype != "bool":
        yield from during([Scratch("the input as bool", 1)])


def _over_dims(call: Call, tensor: TensorOut, kernel_of: KernelOf) -> Iterator[Step]:
    return reduced(
        call,
        tensor,
        call.value("dim"),
        kernel_of=kernel_of,
        keepdim=bool(call.value("keepdim")),
        out_dtype=call.op.outputs[0].dtype,
    )


def _extremum(call: Call, kernel_of: KernelOf, along: KernelOf = index_kernel) -> Iterator[Step]:
    """`kernel_of` is the kernel used if there is no dimension, `along` the one along it."""
    if call.value("dim") is not None:
        yield from _plain(call, along)
        return
    yield from call.outputs()
    yield from flattened(call, call.tensor("self"), kernel_of)


def flattened(call: Call, tensor: TensorOut, kernel_of: KernelOf = value_kernel) -> Iterator[Step]:
    """Clause (2): a reduction of all elements in row-major order."""
    held = contiguous_copies(tensor)
    flat = TensorOut((numel(tensor),), tensor.dtype, None, (1,), 0 if held else tensor.offset)
    yield from during(held, reduced(call, flat, kernel_of=kernel_of))


def aminmax(call: Call, tensor: TensorOut, steps: Iterable[Step] = ()) -> Iterator[Step]:
    """`at::aminmax` of all elements; `steps` are done while both values are held.

    They are a tuple, which frees its first element first (aten/src/ATen/native/cuda/
    ReduceAMinMaxKernel.cu, TensorCompare.cpp, `aminmax_out`).
    """
    held = [Scratch(f"the {what}", item_bytes(tensor.dtype)) for what in ("least", "greatest")]
    yield from map(Take, held)
    yield from flattened(call, tensor, extrema_kernel)
    yield from steps
    yield from map(Free, held)


def contiguous_copies(tensor: TensorOut, what: str = "the input") -> list[Scratch]:
    """The copy that `tensor.contiguous()` makes, if it makes one."""
    return [] if is_contiguous(tensor) else [contiguous_copy(tensor, what)]


def contiguous_copy(tensor: TensorOut, what: str = "the input") -> Scratch:
    """The copy that `tensor.contiguous()` makes of a tensor that is not."""
    return Scratch(f"contiguous copy of {what}", nbytes(tensor))


def _count_nonzero(call: Call) -> Iterator[Step]:
    """`count_nonzero_cuda`: the sum of a mask, which is converted to int64."""
    mask = compact(call.tensor("self"), "bool")
    counted = compact(mask, "int64")
    held = Scratch("mask of nonzero elements", numel(mask))
    yield Take(held)
    yield from call.outputs()
    copy = Scratch("the mask as int64", numel(mask) * INDEX_BYTES)
    yield from during([copy], reduced(call, counted, call.value("dim")))
    yield Free(held)


def _logsumexp(call: Call) -> Iterator[Step]:
    """Clause (3)."""
    tensor, keepdim = call.tensor("self"), bool(call.value("keepdim"))
    yield from logsumexp(call, tensor, call.value("dim"), call.outputs(), keepdim=keepdim)


def logsumexp(
    call: Call, tensor: TensorOut, dims: object, outputs: Iterable[Step], *, keepdim: bool
) -> Iterator[Step]:
    """`logsumexp_out_impl` of a tensor; `outputs` allocates the result."""
    size = item_bytes(tensor.dtype)
    axes = set(axes_of(dims, tensor))
    rows = math.prod(n for axis, n in enumerate(tensor.shape) if axis not in axes)
    maxima = Scratch("maxima", rows * size)
    yield Take(maxima)
    yield from reduced(call, tensor, dims, kernel_of=value_kernel, keepdim=True)
    magnitudes = Scratch("magnitudes of maxima", rows * size)
    mask = during([Scratch("mask", rows)])
    yield from during([magnitudes], [*fill(call, tensor.dtype), *mask])
    exponentials = compact(tensor)
    with_exponentials = Scratch("exponentials", nbytes(exponentials))
    yield Take(with_exponentials)
    yield from outputs
    yield from reduced(call, exponentials, dims, keepdim=keepdim)
    yield Free(with_exponentials)
    yield Free(maxima)


RULES: Mapping[str, Rule] = {
    "aten.sum": _converting,
    "aten.nansum": _converting,
    "aten.mean": _converting,
    "aten.prod": _converting,
    "aten.norm": _converting,
    "aten.linalg_vector_norm": _converting,
    "aten.amax": partial(_plain, kernel_of=value_kernel),
    "aten.amin": partial(_plain, kernel_of=value_kernel),
    "aten.any": _logic,
    "aten.all": _logic,
    "aten._is_any_true": partial(_plain, kernel_of=logic_kernel),  # `any`, ReduceOps.cpp
    "aten._is_all_true": partial(_plain, kernel_of=logic_kernel),
    "aten.max": partial(_extremum, kernel_of=value_kernel),
    "aten.min": partial(_extremum, kernel_of=value_kernel),
    "aten.argmax": partial(_extremum, kernel_of=index_kernel),
    "aten.argmin": partial(_extremum, kernel_of=index_kernel),
    "aten.aminmax": partial(_extremum, kernel_of=extrema_kernel, along=extrema_kernel),
    "aten.var": partial(_plain, kernel_of=_welford_kernel),
    "aten.std": partial(_plain, kernel_of=_welford_kernel),
    "aten.var_mean": partial(_plain, kernel_of=_welford_kernel),
    "aten.std_mean": partial(_plain, kernel_of=_welford_kernel),
    "aten.count_nonzero": _count_nonzero,
    "aten.logsumexp": _logsumexp,
}
