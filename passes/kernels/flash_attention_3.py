"""FlashAttention 3's own operators (hopper/flash_api.cpp of flash-attention, as of 2026-08-15).

(1) Forward (`mha_fwd`): the output and its log-sum-exp; then, unless a dense call is neither causal
    nor windowed, the scheduler's metadata; then partial results where keys are split.
(2) Backward (`mha_bwd`): the row sums, which are returned; the log-sum-exp in base 2 and the
    gradient of the queries in float32, padded to the kernel's tiles; with fewer heads of keys than
    of queries also those of keys and values; and a semaphore. C++ returns the float32 tensors, so
    they outlive the semaphores, until `_flash_attn_backward` returns (flash_attn_interface.py).
(3) Operands whose last dimension is not contiguous are copied first (`maybe_contiguous`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from graphmem.graph import TensorOut
from graphmem.kernel_program import Scratch, Step
from graphmem.virtual_device.stand_ins.flash_attn_3_tiles import (
    Mask,
    mask_of,
    rounded,
    rounded_width,
    tile_of,
)

from .call import Call, Rule, during
from .reduction import contiguous_copy

_FLOAT_BYTES = 4
_INT_BYTES = 4


def _forward(call: Call) -> Iterator[Step]:
    """Clause (1)."""
    if call.value("num_splits") < 1:
        call.leave_out(
            "FlashAttention 3", "keys are not split", "its heuristic of splits is not modelled"
        )
    out, sums, *of_splits = call.outputs()
    held = _metadata(call)
    steps: tuple[Step, ...] = (out, sums, *during(held, of_splits))
    yield from during(_copies(call, "q", "k", "v"), steps)


def _metadata(call: Call) -> list[Scratch]:
    """`tile_count_semaphore`: of packed sequences it also says how to schedule each of them."""
    lengths = ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k")
    packed = any(call.value(name) is not None for name in lengths)
    causal, windowed = _mask(call, call.value("causal"))
    if not (causal or windowed or packed):
        return []
    vectors = 2 * packed + (not windowed) + (causal or windowed)
    numbers = 1 + -(-_batch(call) // 4) * 4 * vectors
    return [Scratch("FlashAttention's scheduler", numbers * _INT_BYTES)]


def _backward(call: Call) -> Iterator[Step]:
    """Clause (2)."""
    query, key = call.tensor("q"), call.tensor("k")
    packed = call.value("cu_seqlens_q") is not None
    batch, heads, key_heads = _batch(call), query.shape[-2], key.shape[-2]
    width = rounded_width(max(query.shape[-1], call.tensor("v").shape[-1]))
    mask, is_capped = _mask(call, call.value("is_causal")), call.value("softcap") > 0
    rows, columns = tile_of(width, mask, is_capped, call.runtime.gpu.compute_capability)
    if packed:
        padded = rounded(query.shape[0] + batch * rows, rows)
        padded_keys = rounded(key.shape[0] + batch * columns, columns)
    else:
        padded = batch * rounded(query.shape[1], rows)
        padded_keys = batch * rounded(key.shape[1], columns)
    returned = [
        Scratch("log-sum-exp in base 2", heads * padded * _FLOAT_BYTES),
        Scratch("gradient of the queries in float32", heads * padded * width * _FLOAT_BYTES),
    ]
    if key_heads != heads:
        nbytes = key_heads * padded_keys * width * _FLOAT_BYTES
        returned += [
            Scratch(f"gradient of the {what} in float32", nbytes) for what in ("keys", "values")
        ]
    longest = call.value("max_seqlen_q") if packed else query.shape[1]
    semaphores = [Scratch("semaphore", -(-longest // rows) * batch * heads * _INT_BYTES)]
    if key_heads != heads and call.value("deterministic"):
        longest = call.value("max_seqlen_k") if packed else key.shape[1]
        nbytes = -(-longest // columns) * batch * key_heads * _INT_BYTES
        semaphores += [Scratch(f"semaphore of the {what}", nbytes) for what in ("keys", "values")]
    steps = (*call.outputs(), *during(returned, during(semaphores)))
    yield from during(_copies(call, "dout", "q", "k", "v", "out"), steps)


def _copies(call: Call, *names: str) -> list[Scratch]:
    """Clause (3)."""
    return [
        contiguous_copy(tensor, name)
        for name, tensor in ((name, call.tensor(name)) for name in names)
        if not _is_taken(tensor, name)
    ]


def _is_taken(tensor: TensorOut, name: str) -> bool:
    return tensor.stride[-1] == 1 or (name == "v" and tensor.stride[-3] == 1)


def _batch(call: Call) -> int:
    starts = call.optional("cu_seqlens_q")
    return call.tensor("q").shape[0] if starts is None else prod(starts.shape) - 1


def _mask(call: Call, is_causal: bool) -> Mask:
    packed = call.value("cu_seqlens_q") is not None
    queries = call.value("max_seqlen_q") if packed else call.tensor("q").shape[1]
    keys = call.value("max_seqlen_k") if packed else call.tensor("k").shape[1]
    window = call.value("window_size_left"), call.value("window_size_right")
    return mask_of(is_causal, *window, queries, keys)


RULES: Mapping[str, Rule] = {
    "flash_attn_3._flash_attn_forward": _forward,
    "flash_attn_3._flash_attn_backward": _backward,
}
