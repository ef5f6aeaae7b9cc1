"""Softmax and its relatives (aten/src/ATen/native/cuda/SoftMax.cu, native/SoftMax.cpp).

(1) Non-contiguous input is copied.
(2) The backward pass of softmax multiplies gradient and output into a temporary of full size;
that of log-softmax does not.
(3) `_safe_softmax`, which the math backend of attention uses, looks for fully masked rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from graphmem.kernel_program import Scratch, Step

from .call import Call, Rule, during
from .layout import is_contiguous, is_dense, item_bytes, nbytes, numel
from .reduction import compact, contiguous_copy, logic_kernel, reduced


def _forward(call: Call) -> Iterator[Step]:
    """`host_softmax`."""
    tensor = call.tensor("self")
    yield from call.outputs()
    if not is_contiguous(tensor):
        yield from during([contiguous_copy(tensor)])


def _backward(call: Call, *, has_product: bool) -> Iterator[Step]:
    """`softmax_backward_cuda_out`, `host_softmax_backward`."""
    grad, output = call.tensor("grad_output"), call.tensor("output")
    yield from call.outputs()
    held = []
    if has_product:
        held.append(Scratch("the gradient times the output", nbytes(grad)))
    if not is_contiguous(grad) and (is_dense(grad) or not has_product):
        held.append(contiguous_copy(grad, "the gradient"))
    if not is_contiguous(output):
        held.append(contiguous_copy(output, "the output"))
    yield from during(held)


def _safe(call: Call) -> Iterator[Step]:
    """Clause (3): the softmax, which becomes the result; a mask of the input, its rows, and 0."""
    tensor = call.tensor("self")
    dim = call.value("dim")
    rows = numel(tensor) // max(1, tensor.shape[dim] if tensor.shape else 1)
    masks = [Scratch("mask of -inf", numel(tensor)), Scratch("rows that are masked", rows)]
    zero = Scratch("0", item_bytes(call.op.outputs[0].dtype))
    masked = reduced(call, compact(tensor, "bool"), dim, kernel_of=logic_kernel, keepdim=True)
    yield from call.outputs()
    yield from during(masks, (*masked, *during([zero])))


RULES: Mapping[str, Rule] = {
    "aten._softmax": _forward,
    "aten._log_softmax": _forward,
    "aten._softmax_backward_data": partial(_backward, has_product=True),
    "aten._log_softmax_backward_data": partial(_backward, has_product=False),
    "aten._safe_softmax": _safe,
}
