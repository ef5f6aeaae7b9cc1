"""cuDNN's attention: seed and offset, then the results, then a workspace.

The order of allocations is in aten/src/ATen/native/transformers/cuda/attention.cu,
`_cudnn_attention_forward`, and cudnn/MHA.cpp. cuDNN chooses its workspaces; these formulas match
each of some 200 calls on an H100 with cuDNN 9.19, the one of torch 2.11 (docs/sources.md):

  (1) Forward: 256 bytes.
  (2) Forward, one query: none; but without a causal mask, 1,024 keys or more are split if the heads
      of keys leave half of the multiprocessors idle: into a power of two of splits, none shorter
      than 128 keys, enough to give each multiprocessor one, at most 64. Each split has a float32
      output, a maximum and a sum for each row, each buffer rounded up to 128 bytes.
  (3) Backward: gradients of the queries and row sums in float32, and 256 bytes; with fewer heads
      of keys than of queries, gradients of keys and values for each head of queries.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphmem.kernel_program import Scratch, Step

from .call import Call, during
from .layout import item_bytes

_FLOAT_BYTES = 4
_ALIGNMENT = 128
_SMALL = 256
_SPLIT_KEYS = 1024
_UNSPLIT_KEYS = 512
_SPLIT_HEADS, _UNSPLIT_HEADS = 48, 96
_SHORTEST_SPLIT = 128
_MOST_SPLITS = 64
_WHAT = "workspace of cuDNN's attention"
_RECORDED = ((9, 0), (2, 11))


def cudnn_forward(call: Call) -> Iterator[Step]:
    """Clauses (1) and (2)."""
    *results, seed, offset = call.outputs()
    yield from (seed, offset, *results)
    nbytes = _forward_bytes(call)
    yield from during([Scratch(_WHAT, nbytes)] if nbytes else [])
    _note(call)
    if _is_between_recordings(call):
        call.leave_out(
            "workspace of cuDNN's attention of one query",
            "0 bytes" if not nbytes else "as with fewer keys and heads",
            "whether cuDNN splits the keys was not recorded at this size; if it does, it takes a "
            "float32 output for each of up to 64 splits",
        )


def cudnn_backward(call: Call) -> Iterator[Step]:
    """Clause (3)."""
    yield from call.outputs()
    batch, heads, queries, width = call.tensor("query").shape
    rows = batch * heads * queries * _FLOAT_BYTES
    nbytes = rows * width + rows + _SMALL + _expanded_bytes(call)
    yield from during([Scratch(_WHAT, nbytes)])
    _note(call)


def _expanded_bytes(call: Call) -> int:
    query, key, value = (call.tensor(name) for name in ("query", "key", "value"))
    batch, heads = query.shape[:2]
    if heads == key.shape[1]:
        return 0
    widths = key.shape[3] + value.shape[3]
    return batch * heads * key.shape[2] * widths * item_bytes(key.dtype)


def _forward_bytes(call: Call) -> int:
    batch, heads, queries, _ = call.tensor("query").shape
    if queries > 1:
        return _SMALL
    splits = 1 if call.value("is_causal") else _splits(call)
    if splits == 1:
        return 0
    rows = splits * batch * heads * _FLOAT_BYTES
    width = call.tensor("value").shape[3]
    return _aligned(rows * width) + 2 * _aligned(rows) + _ALIGNMENT


def _splits(call: Call) -> int:
    """Clause (2)."""
    batch, key_heads, keys, _ = call.tensor("key").shape
    processors = call.runtime.gpu.multiprocessors
    if keys < _SPLIT_KEYS or 2 * batch * key_heads > processors:
        return 1
    enough = 1 << (-(-processors // (batch * key_heads)) - 1).bit_length()
    shortest = 1 << (keys // _SHORTEST_SPLIT).bit_length() - 1
    return min(enough, shortest, _MOST_SPLITS)


def _is_between_recordings(call: Call) -> bool:
    """Whether one query has a number of keys or heads at which neither outcome was recorded."""
    batch, key_heads, keys, _ = call.tensor("key").shape
    if call.tensor("query").shape[2] > 1 or call.value("is_causal") or keys <= _UNSPLIT_KEYS:
        return False
    return keys < _SPLIT_KEYS or _SPLIT_HEADS < batch * key_heads < _UNSPLIT_HEADS


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _note(call: Call) -> None:
    """Note an assumption for cards and versions of cuDNN that were not recorded."""
    if (call.runtime.gpu.compute_capability, call.runtime.release) != _RECORDED:
        call.leave_out(
            _WHAT,
            "as of cuDNN 9.19 on an H100",
            "cuDNN chooses it at run time, up to what is left on the card; the backward pass has "
            "at least a gradient of the queries in float32",
        )
