"""Copies that pooling in two dimensions makes of tensors in another layout.

aten/src/ATen/native/cuda/DilatedMaxPool2d.cu, `max_pool2d_with_indices_out_cuda` and its backward
function, and AveragePool2d.cu, `avg_pool2d_out_cuda` and its backward function: the result is there
when the input, and then the gradient, are made contiguous in the memory format that the input
suggests. In fixtures/cuda/random.tar.xz, random_120 pools a transposed matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphmem.kernel_program import Scratch, Step

from .call import Call, Rule, during
from .layout import is_laid_out, suggests_channels_last
from .reduction import contiguous_copy


def _forward(call: Call) -> Iterator[Step]:
    yield from call.outputs()
    yield from during(_copies(call, "self"))


def _backward(call: Call) -> Iterator[Step]:
    yield from call.outputs()
    yield from during(_copies(call, "self", "grad_output"))


def _copies(call: Call, *names: str) -> Iterator[Scratch]:
    channels_last = suggests_channels_last(call.tensor("self"))
    for name in names:
        tensor = call.tensor(name)
        if not is_laid_out(tensor, channels_last=channels_last):
            yield contiguous_copy(tensor, name)


RULES: Mapping[str, Rule] = {
    "aten.max_pool2d_with_indices": _forward,
    "aten.max_pool2d_with_indices_backward": _backward,
    "aten.avg_pool2d": _forward,
    "aten.avg_pool2d_backward": _backward,
}
"""The rules, by operator."""
