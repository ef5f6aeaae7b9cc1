"""Gradients of distances between all pairs of rows.

aten/src/ATen/native/cuda/DistanceKernel.cu, `pdist_backward_kernel_impl` and
`cdist_backward_kernel_impl` (2.13.0 above a pretended card): a buffer has every pair's share of the
gradient, and is summed into the result. Where the result is zero, as for the exponent 0, there is
none. `cdist` by the Euclidean norm is made of products from 26 rows on, and does not come here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from graphmem.kernel_program import Scratch, Step

from .call import Call, Rule, during
from .layout import item_bytes, numel

_SHARES = "each pair's share of the gradient"


def _pairs_of_one(call: Call) -> Iterator[Step]:
    """`pdist`: of n rows, each has a share for n - 1 others."""
    tensor = call.tensor("self")
    others = max(0, tensor.shape[0] - 1)
    yield from _summed(call, others * numel(tensor) * item_bytes(tensor.dtype))


def _pairs_of_two(call: Call) -> Iterator[Step]:
    """`cdist`: each row of the first has a share for every row of the second."""
    one, other = call.tensor("x1"), call.tensor("x2")
    *_, rows, _ = other.shape
    count = math.prod(call.op.outputs[0].shape)
    yield from _summed(call, rows * count * item_bytes(one.dtype))


def _summed(call: Call, size: int) -> Iterator[Step]:
    yield from call.outputs()
    if call.value("p") and numel(call.tensor("grad")):
        yield from during([Scratch(_SHARES, size)])


RULES: Mapping[str, Rule] = {
    "aten._pdist_backward": _pairs_of_one,
    "aten._cdist_backward": _pairs_of_two,
}
"""The rules, by operator."""
