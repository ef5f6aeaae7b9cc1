"""Elementwise and other operations that allocate scratch memory, or outputs out of order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphmem.kernel_program import Output, Scratch, Step
from graphmem.nodes import Node

from .call import Call, Rule, during
from .layout import accumulate_bytes, is_contiguous, item_bytes, nbytes, numel
from .reduction import contiguous_copy, reduced

_NUMBER_BYTES = 8
_COMPLEX_NUMBER_BYTES = 16


def _dropout(call: Call) -> Iterator[Step]:
    """`dropout_cuda` (aten/src/ATen/native/cuda/Dropout.cu): the mask, then the result."""
    births = len(call.op.births)
    yield from map(Output, (1, 0) if births == 2 else range(births))


def _pow(call: Call) -> Iterator[Step]:
    """`pow_Scalar_out` (native/Pow.cpp): a base other than 1 is copied to the device.

    There it is a float64, an int64 or a complex128 (`wrapped_scalar_tensor`).
    """
    yield from call.outputs()
    base = call.value("self")
    if isinstance(base, Node) or base == 1:
        return
    size = _COMPLEX_NUMBER_BYTES if isinstance(base, complex) else _NUMBER_BYTES
    yield from during([Scratch("the base as a tensor", size)])


def _clamp(call: Call) -> Iterator[Step]:
    """The meta functions of `clamp`, `clamp_min` and `clamp_max` (native/TensorCompare.cpp).

    By a number, of a result of another dtype than `self`, they copy `self` to it: of integers and
    `min=1.0`, for example. By tensors, the kernel casts what it reads.
    """
    tensor, result = call.tensor("self"), call.op.outputs[0]
    by_tensors = any(isinstance(call.value(bound), Node) for bound in ("min", "max"))
    is_cast = not by_tensors and tensor.dtype != result.dtype and numel(tensor)
    casts = [Scratch("self in the result's dtype", nbytes(result))] if is_cast else []
    yield from during(casts, call.outputs())


def _where(call: Call) -> Iterator[Step]:
    """`where_self_out` (native/TensorCompare.cpp): operands in one dtype, the condition a bool."""
    result = call.op.outputs[0]
    casts = [
        Scratch(f"{name} in the result's dtype", numel(tensor) * item_bytes(result.dtype))
        for name in ("self", "other")
        if (tensor := call.tensor(name)).dtype != result.dtype and numel(tensor)
    ]
    condition = call.tensor("condition")
    if condition.dtype != "bool":
        casts.append(Scratch("the condition as booleans", numel(condition)))
    yield from during(casts, call.outputs())


def _renorm(call: Call) -> Iterator[Step]:
    """`renorm_out` (native/Normalization.cpp): norms, float32 for 16 bits, and their factors."""
    tensor = call.tensor("self")
    dim = call.value("dim") % len(tensor.shape)
    count, size = tensor.shape[dim], item_bytes(tensor.dtype)
    wide = accumulate_bytes(tensor.dtype)
    others = [axis for axis in range(len(tensor.shape)) if axis != dim]
    factors = [] if wide == size else [Scratch("factors of slices", count * size)]
    steps = (*reduced(call, tensor, others, keepdim=True), *during(factors))
    yield from call.outputs()
    yield from during([Scratch("norms of slices", count * wide)], steps)


def _grid_sample(call: Call) -> Iterator[Step]:
    """`cudnn_grid_sampler_forward` and its backward (native/cudnn/GridSampler.cpp)."""
    tensors = [(name, call.optional(name)) for name in ("grid", "grad_output")]
    copies = [
        contiguous_copy(tensor, f"the {name}")
        for name, tensor in tensors
        if tensor is not None and not is_contiguous(tensor)
    ]
    yield from during(copies, call.outputs())


RULES: Mapping[str, Rule] = {
    "aten.native_dropout": _dropout,
    "aten.pow": _pow,
    "aten.clamp": _clamp,
    "aten.clamp_min": _clamp,
    "aten.clamp_max": _clamp,
    "aten.renorm": _renorm,
    "aten.where": _where,
    "aten.cudnn_grid_sampler": _grid_sample,
    "aten.cudnn_grid_sampler_backward": _grid_sample,
}
