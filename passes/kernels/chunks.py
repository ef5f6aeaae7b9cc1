"""`_chunk_cat`, by which FSDP packs gradients that it is going to reduce.

Four numbers for each tensor, two running sums over them, and one for each block of 2,048 bytes of a
chunk are packed into one array of int64 that is copied to the card (aten/src/ATen/native/cuda/
TensorShape.cu, `get_chunk_cat_metadata`, `pack_vecs`).

Not covered: tensors that are not dense, which are padded one by one; `split_with_sizes_copy`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from graphmem.graph import TensorOut
from graphmem.kernel_program import Scratch, Step

from .call import Call, Rule, during
from .layout import INDEX_BYTES, is_dense, item_bytes

_BYTES_PER_BLOCK = 128 * 16  # BLOCK_SIZE * BYTES_PER_THREAD


def _chunk_cat(call: Call) -> Iterator[Step]:
    yield from call.outputs()
    tensors = [each for each in call.tensors("tensors") if each is not None]
    out = call.optional("out") or call.op.outputs[0]
    if not all(map(is_dense, tensors)):
        return
    blocks = sum(-(-_chunk_bytes(call, each, out.dtype) // _BYTES_PER_BLOCK) for each in tensors)
    yield from during([_packed(6 * len(tensors) + 2 + blocks)])


def _chunk_bytes(call: Call, tensor: TensorOut, dtype: str) -> int:
    chunks: int = call.value("num_chunks")
    dim: int = call.value("dim") % len(tensor.shape)
    rows = -(-tensor.shape[dim] // chunks)
    return rows * math.prod(tensor.shape[dim + 1 :]) * item_bytes(dtype)


def _packed(count: int) -> Scratch:
    return Scratch("addresses, sizes and blocks", count * INDEX_BYTES)


RULES: Mapping[str, Rule] = {"aten._chunk_cat": _chunk_cat}
