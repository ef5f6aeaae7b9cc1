"""Norms of a list of tensors, as gradient clipping computes them.

aten/src/ATen/native/cuda/ForeachReduceOp.cu, `foreach_tensor_norm_cuda`: one partial norm for each
chunk of the largest tensor, for every tensor, then one scalar for each tensor. If the tensors are
not dense or differ in type, or the order is not 1, 2 or inf, the tensors are reduced one by one.
Other `_foreach` and fused operators allocate only their outputs: their tables reach the card as
kernel arguments (MultiTensorApply.cuh).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from graphmem.graph import TensorOut
from graphmem.kernel_program import Output, Scratch, Step

from .call import Call, Rule, UnknownOperandError, during
from .layout import accumulate_bytes, is_dense, numel
from .reduction import reduced

_CHUNK = 65_536
_FAST_ORDERS = (1, 2, math.inf)


def _norm(call: Call) -> Iterator[Step]:
    tensors = _known(call)
    is_fast = len({each.dtype for each in tensors}) == 1 and all(map(is_dense, tensors))
    if is_fast and call.value("ord") in _FAST_ORDERS:
        chunks = max(-(-numel(each) // _CHUNK) for each in tensors)
        dtype = call.op.outputs[0].dtype
        nbytes = len(tensors) * chunks * accumulate_bytes(dtype)
        yield from during([Scratch("partial norms of chunks", nbytes)], call.outputs())
        return
    for birth, tensor in enumerate(tensors[: len(call.op.births)]):
        yield Output(birth)
        yield from reduced(call, tensor)


def _known(call: Call) -> list[TensorOut]:
    found = [tensor for tensor in call.tensors("self") if tensor is not None]
    if not found:
        raise UnknownOperandError("self")
    return found


RULES: Mapping[str, Rule] = {"aten._foreach_norm": _norm}
