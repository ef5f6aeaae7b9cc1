"""Tables of addresses and sizes that splits and joins of many tensors copy to the card.

aten/src/ATen/native/cuda/TensorShape.cu, names in brackets: `split_with_sizes_copy_out_cuda` and
`_chunk_cat_out_cuda` pack the arguments of their single kernel into an int64 tensor, which lives
until they return [`pack_vecs`]. FSDP2 calls them through its own operators
(torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py). Operands that are not dense, or that
would be cast (except from bfloat16 to float32 in a join), take the slow path, which allocates
nothing more.

Every size in fixtures/cuda/ranks/fsdp2.rank0 agrees.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from graphmem.gpus import Gpu
from graphmem.graph import TensorOut
from graphmem.kernel_program import Scratch, Step

from .call import Call, Rule, UnknownOperandError, during
from .layout import INDEX_BYTES, ceil_div, is_dense, item_bytes, numel

_THREADS = 128  # `BLOCK_SIZE`
_BYTES_PER_BLOCK = _THREADS * 16  # `BYTES_PER_THREAD`


def _split(source: str, sizes: str) -> Rule:
    def rule(call: Call) -> Iterator[Step]:
        whole = call.tensor(source)
        parts = _known(call, "out")
        if not all(is_dense(each) and each.dtype == whole.dtype for each in (whole, *parts)):
            yield from call.outputs()
            return
        dim = (call.value("dim") or 0) % len(whole.shape)
        chunks = math.prod(whole.shape[:dim])
        stride = whole.stride[dim] * item_bytes(whole.dtype)
        lengths = [size * stride for size in call.value(sizes)]
        blocks = _blocks_of_a_split(lengths, chunks, call.runtime.gpu)
        count = 3 * len(lengths) + blocks + len(lengths) + 1
        yield from during([_table(count)], call.outputs())

    return rule


def _blocks_of_a_split(lengths: Sequence[int], chunks: int, gpu: Gpu) -> int:
    """The blocks of a jagged grid that fills the card at most twice."""
    blocks = sum(ceil_div(length, _BYTES_PER_BLOCK) for length in lengths)
    most = gpu.multiprocessors * gpu.max_threads_per_multiprocessor // _THREADS * 2
    factor = ceil_div(blocks * chunks, most)
    chunks_per_block = min(math.ceil(math.sqrt(factor)), chunks)
    rounds = ceil_div(factor, chunks_per_block)
    return sum(ceil_div(length, _BYTES_PER_BLOCK * rounds) for length in lengths)


def _join(call: Call) -> Iterator[Step]:
    tensors = _known(call, "tensors")
    out = call.optional("out") or call.op.outputs[0]
    yield from call.outputs()
    if not all(map(is_dense, (out, *tensors))) or not _is_fast(tensors, out):
        return
    chunks, blocks = call.value("num_chunks"), 0
    for each in tensors:
        dim = call.value("dim") % len(each.shape)
        trailing = math.prod(each.shape[dim + 1 :])
        nbytes = ceil_div(each.shape[dim], chunks) * trailing * item_bytes(out.dtype)
        blocks += ceil_div(nbytes, _BYTES_PER_BLOCK)
    yield from during([_table(6 * len(tensors) + 2 + blocks)])


def _is_fast(tensors: Sequence[TensorOut], out: TensorOut) -> bool:
    kinds = {each.dtype for each in tensors}
    return kinds == {out.dtype} or (kinds == {"bfloat16"} and out.dtype == "float32")


def _known(call: Call, name: str) -> list[TensorOut]:
    found = [each for each in call.tensors(name) if each is not None]
    if not found or not all(numel(each) for each in found):
        raise UnknownOperandError(name)
    return found


def _table(count: int) -> Scratch:
    return Scratch("addresses and sizes", count * INDEX_BYTES)


RULES: Mapping[str, Rule] = {
    "aten.split_with_sizes_copy": _split("self", "split_sizes"),
    "fsdp.split_with_sizes_copy": _split("all_gather_output", "all_gather_input_split_sizes"),
    "aten._chunk_cat": _join,
    "fsdp.chunk_cat": _join,
}
