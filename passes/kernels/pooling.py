"""Copies that pooling in two dimensions makes of tensors in another layout.

aten/src/ATen/native/cuda/DilatedMaxPool2d.cu, `max_pool2d_with_indices_out_cuda` and its backward
function, and AveragePool2d.cu, `avg_pool2d_out_cuda` and its backward function: the result is there
when the input, and then the gradient, are made contiguous in the memory format that the input
suggests. In fixtures/cuda/random.tar.xz, random_120 pools a transposed matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphmem.graph import TensorOut
from graphmem.kernel_program import Scratch, Step

from .call import Call, Rule, during
from .layout import is_laid_out, nbytes, suggests_channels_last


def _forward(call: Call) -> Iterator[Step]:
    yield from call.outputs()
    yield from during(_copies(call.tensor("self")))


def _backward(call: Call) -> Iterator[Step]:
    yield from call.outputs()
    yield from during(_copies(call.tensor("self"), call.tensor("grad_output")))


def _copies(pooled: TensorOut, *others: TensorOut) -> list[Scratch]:
    channels_last = suggests_channels_last(pooled)
    return [
        Scratch("contiguous copy", nbytes(each))
        for each in (pooled, *others)
        if not is_laid_out(each, channels_last=channels_last)
    ]


RULES: Mapping[str, Rule] = {
    "aten.max_pool2d_with_indices": _forward,
    "aten.max_pool2d_with_indices_backward": _backward,
    "aten.avg_pool2d": _forward,
    "aten.avg_pool2d_backward": _backward,
}
"""The rules, by operator."""
