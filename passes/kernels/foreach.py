"""Norms of a list of tensors, as gradient clipping computes them.

aten/src/ATen/native/cuda/ForeachReduceOp.cu, `foreach_tensor_norm_cuda`:
  (1) Up to torch 2.14 each tensor has as many partial norms as the largest has chunks. From 2.15 on
      each has its own, and a table in int64 on the card says where they begin and where the last
      end (`compute_foreach_reduction_chunks`); empty tensors have neither.
  (2) Then one scalar for each tensor.
  (3) If the tensors are not dense or differ in type, or the order is none of 1, 2, inf and from
      2.12 on 0, they are reduced one by one.
Other `_foreach` and fused operators allocate only their outputs: their tables reach the card as
kernel arguments (MultiTensorApply.cuh).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from graphmem.graph import TensorOut
from graphmem.kernel_program import Output, Scratch, Step
from graphmem.torch_releases.differences import NORMS_OF_ORDER_0_ARE_FAST, PARTIAL_NORMS_ARE_PACKED

from .call import Call, Rule, UnknownOperandError, during
from .layout import INDEX_BYTES, accumulate_bytes, ceil_div, is_dense, numel
from .reduction import reduced

_CHUNK = 65_536
_FAST_ORDERS = (1, 2, math.inf)


def _norm(call: Call) -> Iterator[Step]:
    tensors = _known(call)
    if _is_fast(call, tensors):
        yield from during(_partial_norms(call, tensors), call.outputs())
        return
    for birth, tensor in enumerate(tensors[: len(call.op.births)]):
        yield Output(birth)
        yield from reduced(call, tensor)


def _is_fast(call: Call, tensors: list[TensorOut]) -> bool:
    """Clause (3)."""
    order = call.value("ord")
    takes_order = order in _FAST_ORDERS or (
        order == 0 and NORMS_OF_ORDER_0_ARE_FAST.holds_in(call.runtime.release)
    )
    return (
        takes_order and len({each.dtype for each in tensors}) == 1 and all(map(is_dense, tensors))
    )


def _partial_norms(call: Call, tensors: list[TensorOut]) -> list[Scratch]:
    """Clause (1)."""
    chunks = [ceil_div(numel(each), _CHUNK) for each in tensors]
    size = accumulate_bytes(call.op.outputs[0].dtype)
    if not PARTIAL_NORMS_ARE_PACKED.holds_in(call.runtime.release):
        return [Scratch("partial norms of chunks", len(tensors) * max(chunks) * size)]
    entries = sum(map(bool, chunks)) + 1
    return [
        Scratch("where the partial norms of tensors begin", entries * INDEX_BYTES),
        Scratch("partial norms of chunks", sum(chunks) * size),
    ]


def _known(call: Call) -> list[TensorOut]:
    found = [tensor for tensor in call.tensors("self") if tensor is not None]
    if not found:
        raise UnknownOperandError("self")
    return found


RULES: Mapping[str, Rule] = {"aten._foreach_norm": _norm}
