"""Memory-efficient attention (CUTLASS), forward and backward.

  (0) Forward, while a CUDA graph is captured: seed and offset are on the card, and are allocated
      before the results (cuda/attention.cu, `in_capture_stream`; recording `compiled_cudagraphs`).
  (1) Forward, 16 bits and values wider than 128: the output is accumulated in float32
      (aten/src/ATen/native/transformers/cuda/mem_eff_attention/kernel_forward.h,
      `kNeedsOutputAccumulatorBuffer`).
  (2) Backward: the incoming gradient is made contiguous in the kernel's order, (batch, sequence,
      heads, width), before the outputs are allocated (cuda/attention_backward.cu).
  (3) Backward: row sums of gradient times output. 16-bit kernels compute them, except on a V100 if
      the outputs do not fit into registers; otherwise they take a full-size product, its sum and a
      contiguous copy (cuda/attention_backward.cu).
  (4) Backward: a workspace for each head, with a tile for each block of queries, and for gradients
      of keys and values that do not fit into registers (kernel_backward.h, `workspace_elements_gq`,
      `workspace_elements_gk`, `workspace_strideBH`; the lists of kernels in kernels/cutlassB.h).
      It outlives the row sums: the function holds the workspace, the kernel's launcher the sums.
      Of packed sequences (`cu_seqlens_q`) each counts as a sample, as long as the longest.
  (5) Backward, torch 2.14 on, fewer heads of keys than of queries: gradients of keys and values for
      each head of queries, between the three gradients and that of the bias; they are summed into
      the results while the workspace is held (cuda/attention_backward.cu, `sum_out`).

Which kernels fit into a card's shared memory is assumed: blocks of 128 queries fit compute
capabilities 8.0, 9.0 and 10.0, and in 16 bits also 7.0 (the generator of the kernels says that 7.5
and 8.6 need the smaller ones).

Not covered: deterministic algorithms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from graphmem.graph import TensorOut
from graphmem.kernel_program import Free, Scratch, Step, Take

from .attention_operands import is_sequence_first, operand
from .call import Call, during
from .layout import ceil_div, contiguous_strides, is_half, nbytes, numel
from .reduction import contiguous_copy, reduced

_FLOAT_BYTES = 4
_GRADIENTS_OF_OPERANDS = 3
_WIDE_VALUES = 128
_LOCK_BYTES = 16
_SEED = 2  # the position among the results
_WIDEST = 65_536
_SPLITS_BOUND = 200
_ENOUGH_HEADS = 256
_LARGE_SHARED_MEMORY = ((8, 0), (9, 0), (10, 0))
_VOLTA = (7, 0)
_SMALL_AMPERE = ((8, 6), (8, 9))


@dataclass(frozen=True)
class Tile:
    """A backward kernel: queries and keys of a block, and the widest head that it takes."""

    queries: int
    keys: int
    width: int


def efficient_forward(call: Call) -> Iterator[Step]:
    """Clauses (0) and (1)."""
    outputs = list(call.outputs())
    drawn = 2 if call.op.outputs[_SEED].storage is not None else 0
    results = len(outputs) - drawn
    yield from (*outputs[results:], *outputs[:results])
    value = operand(call, "value")
    if is_half(value.dtype) and value.shape[-1] > _WIDE_VALUES:
        elements = numel(call.op.outputs[0])
        yield from during([Scratch("output in float32", elements * _FLOAT_BYTES)])


def efficient_backward(call: Call) -> Iterator[Step]:
    """Clauses (2) to (5)."""
    grad = operand(call, "grad_out_")
    copies = [] if is_sequence_first(grad) else [contiguous_copy(grad, "the gradient")]
    outputs = list(call.outputs())
    of_bias = [outputs.pop()] if _bias_trains(call) else []
    each_head = _gradients_of_each_head(call)
    steps = during(each_head, (*of_bias, *_gradients(call, sums=_sums_of_heads(call, each_head))))
    yield from during(copies, (*outputs, *steps))


def _bias_trains(call: Call) -> bool:
    """Whether the last result, the gradient of the bias, is there."""
    return len(call.op.births) > 1 and len(call.op.outputs) > _GRADIENTS_OF_OPERANDS


def _gradients_of_each_head(call: Call) -> list[Scratch]:
    """Clause (5); up to torch 2.13 the kernel is not chosen for fewer heads of keys."""
    query, key, value = (operand(call, name) for name in ("query", "key", "value"))
    heads = query.shape[1]
    if heads == key.shape[1]:
        return []
    return [
        Scratch(f"gradient of {what} for each head of queries", nbytes(each) // shared * heads)
        for what, each, shared in (("keys", key, key.shape[1]), ("values", value, value.shape[1]))
    ]


def _sums_of_heads(call: Call, each_head: list[Scratch]) -> Iterator[Step]:
    """The reductions of clause (5), which need memory for 256 or more heads that share keys."""
    if not each_head:
        return
    heads = operand(call, "query").shape[1]
    for name in ("key", "value"):
        batch, shared, length, width = operand(call, name).shape
        shape = (batch, length, shared, heads // shared, width)
        grouped = TensorOut(
            shape, operand(call, name).dtype, None, tuple(contiguous_strides(shape))
        )
        yield from reduced(call, grouped, [3])


def _gradients(call: Call, sums: Iterator[Step]) -> Iterator[Step]:
    batch, heads, queries, _ = operand(call, "query").shape
    tile = tile_of(call)
    rows = Scratch("row sums of output * gradient", batch * heads * queries * _FLOAT_BYTES)
    yield from during([] if _kernel_sums(call, tile) else _products(call, rows), [Take(rows)])
    workspace = Scratch("workspace of the gradients", workspace_bytes(call, tile))
    yield from (Take(workspace), Free(rows), *sums, Free(workspace))


def _products(call: Call, sums: Scratch) -> list[Scratch]:
    """The temporaries of clause (3)'s formula; a single row or head needs no transpose."""
    out = operand(call, "out")
    product = Scratch("output * gradient in float32", numel(out) * _FLOAT_BYTES)
    copies = [Scratch(f"the {what} in float32", product.nbytes) for what in ("gradient", "output")]
    summed = [Scratch("sums before they are transposed", sums.nbytes)]
    is_transposed = min(out.shape[1:3]) == 1
    return [*(copies if is_half(out.dtype) else []), product, *([] if is_transposed else summed)]


def _kernel_sums(call: Call, tile: Tile) -> bool:
    """`kKernelComputesDelta`."""
    is_volta = call.runtime.gpu.compute_capability == _VOLTA
    return is_half(operand(call, "query").dtype) and (_fits_registers(call, tile) or not is_volta)


def _fits_registers(call: Call, tile: Tile) -> bool:
    """`kOutputInRF`."""
    return is_half(operand(call, "query").dtype) and tile.width <= tile.queries


def tile_of(call: Call) -> Tile:
    """The first kernel of `dispatch_cutlassB` that takes the width and fits the card."""
    query, value = operand(call, "query"), operand(call, "value")
    width = max(query.shape[-1], value.shape[-1])
    capability = call.runtime.gpu.compute_capability
    if width <= 64:
        return Tile(64, 64, 32 if width <= 32 else 64)
    if is_half(query.dtype) and width <= 96 and capability in _SMALL_AMPERE:
        return Tile(128, 64, 96)
    is_large = capability in _LARGE_SHARED_MEMORY
    rows = 128 if is_large or (capability == _VOLTA and is_half(query.dtype)) else 64
    if width <= 128:
        return Tile(rows, 128 if is_large and is_half(query.dtype) else 64, 128)
    return Tile(rows, 64, _WIDEST)


def workspace_bytes(call: Call, tile: Tile) -> int:
    """Clause (4)."""
    query, value = operand(call, "query"), operand(call, "value")
    batch, queries, keys = _sequences(call)
    _, heads, _, width = query.shape
    tiles = ceil_div(queries, tile.queries) * ceil_div(width, tile.keys)
    floats = tiles * (_LOCK_BYTES // _FLOAT_BYTES + tile.queries * tile.keys)
    if is_half(query.dtype) and not _fits_registers(call, tile):
        splits = _splits(batch * heads, keys, tile)
        widths = (width, value.shape[-1])
        columns = sum(ceil_div(each, tile.queries) * tile.queries for each in widths)
        floats += splits * tile.keys * columns
    return batch * heads * ceil_div(floats, 4) * 4 * _FLOAT_BYTES


def _sequences(call: Call) -> tuple[int, int, int]:
    """`num_batches`, `num_queries` and `num_keys` of the kernel."""
    starts = call.optional("cu_seqlens_q")
    if starts is not None:
        return starts.shape[0] - 1, call.value("max_seqlen_q"), call.value("max_seqlen_k")
    batch, _, queries, _ = operand(call, "query").shape
    return batch, queries, operand(call, "key").shape[2]


def _splits(batch_heads: int, keys: int, tile: Tile) -> int:
    """How many blocks share the keys, each with gradients of keys and values in memory."""
    splits = ceil_div(keys, tile.keys)
    if batch_heads >= _ENOUGH_HEADS and keys <= 2 * tile.keys:
        splits = 1
    return max(1, min(splits, _SPLITS_BOUND // batch_heads))
