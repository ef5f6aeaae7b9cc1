"""The gradient of a convolution's bias, which is a sum over all but the channels.

aten/src/ATen/native/Convolution.cpp, `convolution_backward`: cuDNN computes the gradients of input
and weight, then the gradient of the bias is a sum, whose staging buffer depends on the layout of
the incoming gradient. cuDNN's own workspaces are listed by the pass `unmodelled`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphmem.kernel_program import Step

from .call import Call, Rule
from .reduction import reduced


def _backward(call: Call) -> Iterator[Step]:
    yield from call.outputs()
    if call.value("output_mask")[2]:
        grad = call.tensor("grad_output")
        axes = [axis for axis in range(len(grad.shape)) if axis != 1]
        yield from reduced(call, grad, axes)


RULES: Mapping[str, Rule] = {"aten.convolution_backward": _backward}
