"""Fused attention: flash, memory-efficient, cuDNN. The math backend is ordinary operations.

(1) Flash, forward: short queries without dropout may be split along the keys, with a partial
    result for each split (aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp,
    `set_params_splitkv`, `num_splits_heuristic`), held until the kernel is launched. With
    dropout the state of the generator is allocated a second time (`mha_fwd`). Before torch 2.7
    there are a seed and an offset, on the host unless a CUDA graph is captured.
(2) Flash, backward: incoming gradient and output are made contiguous in the kernel's order; then
    row sums and a float32 gradient of the queries are allocated, and with fewer heads of keys than
    of queries a gradient of keys and values for each head of queries (`mha_bwd`). Deterministic
    algorithms have a float32 gradient for each share of the multiprocessors (`nsplits`).
(3) Flash, sequences packed without padding: the forward pass splits nothing (`mha_varlen_fwd`);
    in the backward pass row sums and float32 gradient have 128 rows more for each sequence
    (`mha_varlen_bwd`).
(4) Memory-efficient: see `efficient_attention`; cuDNN: see `cudnn_attention`.

Not covered: of packed sequences, one query each for several heads per key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphmem.kernel_program import Free, Scratch, Step, Take
from graphmem.op_states import Determinism

from .attention_operands import is_sequence_first, operand
from .call import Call, Rule, UnknownOperandError, during
from .cudnn_attention import cudnn_backward, cudnn_forward
from .efficient_attention import efficient_backward, efficient_forward
from .layout import ceil_div, is_contiguous, item_bytes
from .reduction import contiguous_copy

_FLOAT_BYTES = 4
_QUERY_BLOCK = 64
_ROWS_BLOCK = 128
_ENOUGH_WORK = 0.8
_NEAR_BEST = 0.85
_MOST_SPLITS = 128
_STATE = "uint64"
_STATE_BYTES = 16


def _flash(call: Call) -> Iterator[Step]:
    """Clause (1)."""
    output, sums, *state = call.outputs()
    held = _of_splits(call)
    yield output
    yield sums
    yield from map(Take, held)
    if call.value("dropout_p") and any(each.dtype == _STATE for each in call.op.outputs):
        replaced = Scratch("state of the generator", _STATE_BYTES)
        yield Take(replaced)
        yield from reversed(state)
        yield Free(replaced)
    else:
        yield from state
    yield from map(Free, held)


def _of_splits(call: Call) -> list[Scratch]:
    if _is_packed(call):
        if call.value("max_q") == 1:
            raise UnknownOperandError("query")
        return []
    batch, heads, queries, width = operand(call, "query").shape
    keys = operand(call, "key").shape[2]
    splits = 1 if call.value("dropout_p") else _splits(call, batch * heads, queries, keys, width)
    if splits == 1:
        return []
    rows = splits * batch * heads * queries * _FLOAT_BYTES
    return [
        Scratch("logsumexp of splits", rows),
        Scratch("outputs of splits", rows * _rounded_width(width)),
    ]


def _is_packed(call: Call) -> bool:
    return call.optional("cum_seq_q") is not None


def _splits(call: Call, batch_heads: int, queries: int, keys: int, width: int) -> int:
    """`num_splits_heuristic`, in blocks of 128 threads, two on each multiprocessor."""
    key_block = 256 if width <= 64 else 128 if width <= 128 else 64
    work = batch_heads * -(-queries // _QUERY_BLOCK)
    slots, blocks = 2 * call.runtime.gpu.multiprocessors, -(-keys // key_block)
    if work >= _ENOUGH_WORK * slots:
        return 1
    efficiency = {}
    for splits in range(1, min(_MOST_SPLITS, slots, blocks) + 1):
        if splits == 1 or -(-blocks // splits) != -(-blocks // (splits - 1)):
            waves = work * splits / slots
            efficiency[splits] = waves / -(-work * splits // slots)
    best = max(efficiency.values(), default=0)
    return next((n for n, found in efficiency.items() if found >= _NEAR_BEST * best), 1)


def _rounded_width(width: int) -> int:
    """The head width, rounded up to the kernel's tiles."""
    return -(-width // 32) * 32 if width <= 192 else 256


def _flash_backward(call: Call) -> Iterator[Step]:
    """Clauses (2) and (3)."""
    if _is_packed(call):
        yield from _packed_backward(call)
        return
    grad, out, query = (operand(call, name) for name in ("grad_out", "out", "query"))
    copies = [
        contiguous_copy(tensor, what)
        for tensor, what in ((grad, "the gradient"), (out, "the output"))
        if not is_sequence_first(tensor)
    ]
    batch, heads, queries, width = query.shape
    rows = batch * -(-queries // _ROWS_BLOCK) * _ROWS_BLOCK
    keys = operand(call, "key")
    batch_keys = keys.shape[0] * keys.shape[2]
    held = _gradients(call, batch, (rows, heads, width), (batch_keys, keys.shape[1]))
    yield from during(copies, (*call.outputs(), *during(held)))


def _packed_backward(call: Call) -> Iterator[Step]:
    """Clause (3)."""
    names = {"grad_out": "the gradient", "out": "the output"}
    copies = [
        contiguous_copy(call.tensor(name), what)
        for name, what in names.items()
        if not is_contiguous(call.tensor(name))
    ]
    total, heads, width = call.tensor("query").shape
    sequences = call.tensor("cum_seq_q").shape[0] - 1
    keys = call.tensor("key")
    rows = total + _ROWS_BLOCK * sequences
    held = _gradients(call, sequences, (rows, heads, width), keys.shape[:2])
    yield from during(copies, (*call.outputs(), *during(held)))


def _gradients(
    call: Call, batch: int, queries: tuple[int, int, int], keys: tuple[int, ...]
) -> list[Scratch]:
    """What both backward passes allocate.

    Args:
        call: the backward pass.
        batch: how many sequences there are.
        queries: rows, heads and width of the queries.
        keys: rows and heads of the keys.
    """
    rows, heads, width = queries
    floats = rows * heads * _FLOAT_BYTES
    is_deterministic = call.op.determinism is not Determinism.NONE
    shares = ceil_div(call.runtime.gpu.multiprocessors, batch * heads) if is_deterministic else 1
    held = [
        Scratch("row sums of output * gradient", floats),
        Scratch("gradient of the queries in float32", shares * floats * _rounded_width(width)),
    ]
    key_rows, key_heads = keys
    if key_heads == heads:
        return held
    nbytes = key_rows * heads * width * item_bytes(call.tensor("key").dtype)
    return held + [
        Scratch(f"gradient of the {what} for each head of queries", nbytes)
        for what in ("keys", "values")
    ]


RULES: Mapping[str, Rule] = {
    "aten._scaled_dot_product_flash_attention": _flash,
    "aten._scaled_dot_product_flash_attention_backward": _flash_backward,
    "aten._flash_attention_forward": _flash,
    "aten._flash_attention_backward": _flash_backward,
    "aten._scaled_dot_product_efficient_attention": efficient_forward,
    "aten._scaled_dot_product_efficient_attention_backward": efficient_backward,
    "aten._efficient_attention_forward": efficient_forward,
    "aten._efficient_attention_backward": efficient_backward,
    "aten._scaled_dot_product_cudnn_attention": cudnn_forward,
    "aten._scaled_dot_product_cudnn_attention_backward": cudnn_backward,
}
