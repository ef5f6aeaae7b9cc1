"""Losses that reduce what they computed for each element.

`mse_loss` and `smooth_l1_loss` compute every element's loss a second time beside the storage of
their result (mlp01 shows both blocks); the others reduce the storage of their result, or a
temporary, into a scalar (aten/src/ATen/native/Loss.cpp, cuda/Loss.cu).
`binary_cross_entropy_with_logits` has the logarithm of the sigmoid beside.

Not covered: `nll_loss` of input that is not contiguous, `multi_margin_loss`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from graphmem.graph import TensorOut
from graphmem.kernel_program import Free, Scratch, Step, Take

from .call import Call, Rule, during
from .layout import contiguous_strides, item_bytes, nbytes
from .reduction import reduced

_NO_REDUCTION = 0
_UNREDUCED = "loss of every element"


def _computed_twice(call: Call) -> Iterator[Step]:
    yield from call.outputs()
    if call.value("reduction") != _NO_REDUCTION:
        values = _elementwise(call)
        yield from during([Scratch(_UNREDUCED, nbytes(values))], reduced(call, values))


def _reduced_in_place(call: Call) -> Iterator[Step]:
    yield from call.outputs()
    if call.value("reduction") != _NO_REDUCTION:
        values = _elementwise(call)
        scalar = Scratch("reduced loss", item_bytes(values.dtype))
        yield from during([scalar], reduced(call, values))


def _reduced_from_temporary(call: Call) -> Iterator[Step]:
    if call.value("reduction") == _NO_REDUCTION:
        yield from call.outputs()
        return
    values = _elementwise(call)
    steps = (*call.outputs(), *reduced(call, values))
    yield from during([Scratch(_UNREDUCED, nbytes(values))], steps)


def _with_logits(call: Call) -> Iterator[Step]:
    """`binary_cross_entropy_with_logits` (Loss.cpp)."""
    values = _elementwise(call)
    size = nbytes(values)
    log_sigmoid = Scratch("logarithm of the sigmoid", size)
    yield Take(log_sigmoid)
    weight = call.optional("pos_weight")
    if weight is not None:
        less = Scratch("weight of positives less 1", nbytes(weight))
        factors = Scratch("weights of elements", size)
        yield from (Take(less), Take(factors), Free(less), Free(factors))
    if call.value("reduction") == _NO_REDUCTION:
        yield from call.outputs()
    else:
        steps = (*call.outputs(), *reduced(call, values))
        yield from during([Scratch(_UNREDUCED, size)], steps)
    yield Free(log_sigmoid)


def _elementwise(call: Call) -> TensorOut:
    shapes = (call.tensor("self").shape, call.tensor("target").shape)
    shape = tuple(torch.broadcast_shapes(*shapes))
    return TensorOut(shape, call.op.outputs[0].dtype, None, contiguous_strides(shape))


RULES: Mapping[str, Rule] = {
    "aten.mse_loss": _computed_twice,
    "aten.smooth_l1_loss": _computed_twice,
    "aten.binary_cross_entropy": _reduced_in_place,
    "aten.soft_margin_loss": _reduced_in_place,
    "aten.huber_loss": _reduced_from_temporary,
    "aten.binary_cross_entropy_with_logits": _with_logits,
}
