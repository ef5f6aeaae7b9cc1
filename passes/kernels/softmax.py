"""Softmax and its relatives (aten/src/ATen/native/cuda/SoftMax.cu, native/SoftMax.cpp).

(1) Input that is not contiguous is copied.
(2) The backward pass of softmax multiplies gradient and output into a temporary of full size;
that of log-softmax does not.
(3) `_safe_softmax`, which attention by formulas uses, looks for rows that are masked altogether.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from graphmem.kernel_program import Free, Scratch, Step, Take

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
    """Clause (3): the softmax, -inf, a mask of the input, its rows, 0; then the result."""
    tensor, out = call.tensor("self"), call.op.outputs[0]
    size, dims = item_bytes(out.dtype), call.value("dim")
    rows = numel(tensor) // max(1, tensor.shape[dims] if tensor.shape else 1)
    held = [Scratch("softmax before empty rows", numel(out) * size), Scratch("-inf", size)]
    mask = Scratch("mask of -inf", numel(tensor))
    full_rows = Scratch("rows that are masked", rows)
    zero = Scratch("0", size)
    yield from map(Take, (*held, mask, full_rows))
    masked = compact(tensor, "bool")
    yield from reduced(call, masked, dims, kernel_of=logic_kernel, keepdim=True)
    yield Take(zero)
    yield from call.outputs()
    yield from map(Free, (zero, full_rows, mask, *reversed(held)))


RULES: Mapping[str, Rule] = {
    "aten._softmax": _forward,
    "aten._log_softmax": _forward,
    "aten._softmax_backward_data": partial(_backward, has_product=True),
    "aten._log_softmax_backward_data": partial(_backward, has_product=False),
    "aten._safe_softmax": _safe,
}
