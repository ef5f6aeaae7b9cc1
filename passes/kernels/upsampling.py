"""The copy that the backward pass of bicubic interpolation makes of its gradient.

aten/src/ATen/native/cuda/UpSampleBicubic2d.cu, `upsample_bicubic2d_backward_out_template`: the
result is there when the incoming gradient is made contiguous. In fixtures/cuda/zoo.tar.xz,
zoo_yolos resizes its table of positions so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphmem.kernel_program import Step

from .call import Call, Rule, during
from .layout import is_contiguous
from .reduction import contiguous_copy


def _bicubic_backward(call: Call) -> Iterator[Step]:
    grad = call.tensor("grad_output")
    yield from call.outputs()
    if not is_contiguous(grad):
        yield from during([contiguous_copy(grad, "the gradient")])


RULES: Mapping[str, Rule] = {"aten.upsample_bicubic2d_backward": _bicubic_backward}
"""The rules, by operator."""
