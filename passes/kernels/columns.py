"""`im2col` and `col2im`: aten/src/ATen/native/cuda/Im2Col.cu and Col2Im.cu.

(1) An input that is not contiguous is copied once the result is there.
(2) The result begins as large as the input. A larger one takes new memory and lets the first go
    (`resize_`); a smaller one keeps it (`graphmem/virtual_gpu/operators/columns.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphmem.kernel_program import Free, Scratch, Step, Take

from .call import Call, Rule, during
from .layout import is_contiguous, nbytes
from .reduction import contiguous_copy


def _columns(call: Call) -> Iterator[Step]:
    tensor, result = call.tensor("self"), call.op.outputs[0]
    copies = [] if is_contiguous(tensor) else [contiguous_copy(tensor)]
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


RULES: Mapping[str, Rule] = {"aten.im2col": _columns, "aten.col2im": _columns}
