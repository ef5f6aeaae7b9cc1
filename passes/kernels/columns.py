"""`im2col`, `col2im`, and the gradient of a tensor's `unfold`.

aten/src/ATen/native/cuda/Im2Col.cu, Col2Im.cu; native/UnfoldBackward.cpp, UnfoldBackward.h:
(1) A non-contiguous input is copied after the result is allocated.
(2) The result starts as large as the input. A larger result takes new memory and frees the first
    (`resize_`); a smaller one keeps it (`graphmem/virtual_device/operators/columns.py`).
(3) Where windows overlap, the gradient is summed through a tensor of positions along the dimension
    up to the last window's end (`_make_unfold_backward_iter_over_grad_out`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphmem.kernel_program import Free, Scratch, Step, Take

from .call import Call, Rule, during
from .filling import fill
from .layout import INDEX_BYTES, nbytes
from .reduction import contiguous_copies


def _columns(call: Call) -> Iterator[Step]:
    tensor, result = call.tensor("self"), call.op.outputs[0]
    copies = contiguous_copies(tensor)
    if nbytes(result) <= nbytes(tensor):
        yield from call.outputs()
        yield from during(copies)
        return
    first = Scratch("the result, as large as the input", nbytes(tensor))
    yield Take(first)
    yield from map(Take, copies)
    yield from call.outputs()
    yield Free(first)
    yield from map(Free, copies)


def _unfold_backward(call: Call) -> Iterator[Step]:
    """Clause (3)."""
    yield from call.outputs()
    sizes = call.value("input_sizes")
    step, size, dim = (call.value(name) for name in ("step", "size", "dim"))
    if sizes and step < size:
        end = min(sizes[dim], (call.tensor("grad_in").shape[dim] - 1) * step + size)
        positions = Scratch("positions along the dimension", end * INDEX_BYTES)
        yield from during([positions], fill(call, "int64"))


RULES: Mapping[str, Rule] = {
    "aten.im2col": _columns,
    "aten.col2im": _columns,
    "aten.unfold_backward": _unfold_backward,
}
