"""Losses that are computed for each element and then reduced.

`mse_loss` and `smooth_l1_loss` compute every element's loss a second time, next to the storage of
their result (mlp01 shows both blocks); the others reduce the storage of their result, or a
temporary, into a scalar (aten/src/ATen/native/Loss.cpp, cuda/Loss.cu).
`binary_cross_entropy_with_logits` also allocates the logarithm of the sigmoid. `nll_loss` of images
allocates the total weight before its loss (cuda/NLLLoss2d.cu,
`nll_loss2d_forward_out_cuda_template`), and the margin losses sum a loss for each row
(cuda/MultiMarginLoss.cu, cuda/MultiLabelMarginCriterion.cu).

Not covered: `nll_loss` of input that is not contiguous.
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
_OF_ROWS = "loss of every row"


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


def _soft_margin_backward(call: Call) -> Iterator[Step]:
    """`soft_margin_loss_backward_out` (Loss.cpp)."""
    size = nbytes(_elementwise(call))
    names = ("negated target", "the target times the input", "its exponential")
    negated, product, exponential = (Scratch(name, size) for name in names)
    yield from map(Take, (negated, product, exponential))
    yield from (Free(product), Free(negated))
    yield from call.outputs()
    yield Free(exponential)


def _images(call: Call) -> Iterator[Step]:
    yield from reversed(list(call.outputs()))


def _multi_margin(call: Call) -> Iterator[Step]:
    yield from call.outputs()
    if call.value("reduction") != _NO_REDUCTION and len(call.tensor("self").shape) > 1:
        rows = _rows(call)
        yield from during([Scratch(_OF_ROWS, nbytes(rows))], reduced(call, rows))


def _multilabel_margin(call: Call) -> Iterator[Step]:
    """The targets' marks come first, then the losses of rows, then their sum."""
    loss, marks = call.outputs()
    yield marks
    if call.value("reduction") == _NO_REDUCTION or len(call.tensor("self").shape) < 2:
        yield loss
        return
    rows = _rows(call)
    yield from during([Scratch(_OF_ROWS, nbytes(rows))], (loss, *reduced(call, rows)))


def _rows(call: Call) -> TensorOut:
    tensor = call.tensor("self")
    return TensorOut(tensor.shape[:1], tensor.dtype, None, (1,))


def _elementwise(call: Call) -> TensorOut:
    shapes = (call.tensor("self").shape, call.tensor("target").shape)
    shape = tuple(torch.broadcast_shapes(*shapes))
    return TensorOut(shape, call.op.outputs[0].dtype, None, contiguous_strides(shape))


RULES: Mapping[str, Rule] = {
    "aten.mse_loss": _computed_twice,
    "aten.smooth_l1_loss": _computed_twice,
    "aten.binary_cross_entropy": _reduced_in_place,
    "aten.soft_margin_loss": _reduced_in_place,
    "aten.soft_margin_loss_backward": _soft_margin_backward,
    "aten.nll_loss2d_forward": _images,
    "aten.multi_margin_loss": _multi_margin,
    "aten.multilabel_margin_loss_forward": _multilabel_margin,
    "aten.huber_loss": _reduced_from_temporary,
    "aten.binary_cross_entropy_with_logits": _with_logits,
}
