"""Copies that padding by reflection makes of tensors that are not contiguous.

aten/src/ATen/native/cuda/ReflectionPad.cu, of one and two dimensions: the result is there when the
input, or in the backward pass the gradient, is made contiguous; channels last is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from graphmem.kernel_program import Step

from .call import Call, Rule, during
from .reduction import contiguous_copies


def _reflected(call: Call, name: str) -> Iterator[Step]:
    yield from call.outputs()
    yield from during(contiguous_copies(call.tensor(name), name))


_forward, _backward = partial(_reflected, name="self"), partial(_reflected, name="grad_output")

RULES: Mapping[str, Rule] = {
    "aten.reflection_pad1d": _forward,
    "aten.reflection_pad2d": _forward,
    "aten.reflection_pad1d_backward": _backward,
    "aten.reflection_pad2d_backward": _backward,
}
"""The rules, by operator."""
