"""The allocations of flash-attn 2.8's extension `flash_attn_2_cuda`.

The four functions take and return what the extension's do (csrc/flash_attn/flash_api.cpp).

(1) `mha_fwd`: the output, the log-sum-exp in float32, the random state; if few blocks would leave
    multiprocessors idle, partial results of several splits (`set_params_splitkv`).
(2) `mha_bwd`: the sums of the softmax and the gradient of the queries in float32, rounded up to
    blocks of 128 rows and of 32 columns (64 above 128), and if heads share keys, the gradients of
    keys and values for every head, which are then summed.
(3) The same for packed sequences, with 128 rows of padding per sequence.

Not covered: paged keys, and one query per sequence (`seqlenq_ngroups_swapped`), both for
generation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

_BLOCK = 128
_MOST_SPLITS = 128
Tensors = tuple[torch.Tensor, ...]


def fwd(q: Any, k: Any, v: Any, out: Any, slopes: Any, dropout: float, *rest: Any) -> Tensors:
    """`mha_fwd`."""
    returns_softmax = rest[5]
    batch, rows, heads, width = q.shape
    columns = k.shape[1]
    out = torch.empty_like(q) if out is None else out
    sums = q.new_empty((batch, heads, rows), dtype=torch.float32)
    size = (batch, heads, rounded(rows), rounded(columns)) if returns_softmax else (0,)
    probabilities = q.new_empty(size)
    splits = 1 if dropout else _splits(batch, heads, rows, columns, width, _multiprocessors(q))
    partial = (splits, batch, heads, rows)
    sizes = [partial, (*partial, _width(width))] if splits > 1 else []
    parts = [q.new_empty(size, dtype=torch.float32) for size in sizes]
    state = q.new_empty((2,), dtype=torch.int64)
    del parts
    return out, sums, probabilities, state


def varlen_fwd(q: Any, k: Any, v: Any, out: Any, starts: Any, *rest: Any) -> Tensors:
    """`mha_varlen_fwd`."""
    most_rows, most_columns, returns_softmax = rest[5], rest[6], rest[14]
    total, heads, _ = q.shape
    out = torch.empty_like(q) if out is None else out
    sums = q.new_empty((heads, total), dtype=torch.float32)
    of_all = (starts.numel() - 1, heads, rounded(most_rows), rounded(most_columns))
    probabilities = q.new_empty(of_all if returns_softmax else (0,))
    return out, sums, probabilities, q.new_empty((2,), dtype=torch.int64)


def bwd(
    dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, dq: Any, dk: Any, dv: Any, *rest: Any
) -> Tensors:
    """`mha_bwd`."""
    deterministic = rest[7]
    batch, rows, heads, width = q.shape
    dq, dk, dv = _gradients(q, k, v, dq, dk, dv)
    sums = q.new_empty((batch, heads, rounded(rows)), dtype=torch.float32)
    copies = -(-_multiprocessors(q) // (batch * heads)) if deterministic else None
    accumulated = _accumulator(q, (batch, rounded(rows), heads, _width(width)), copies)
    _share_keys(k, dk, dv, heads)
    del accumulated
    return dq, dk, dv, sums


def varlen_bwd(
    dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, dq: Any, dk: Any, dv: Any, *rest: Any
) -> Tensors:
    """`mha_varlen_bwd`."""
    starts, deterministic = rest[0], rest[12]
    total, heads, width = q.shape
    batch = starts.numel() - 1
    dq, dk, dv = _gradients(q, k, v, dq, dk, dv)
    padded = total + _BLOCK * batch
    sums = q.new_empty((heads, padded), dtype=torch.float32)
    copies = -(-_multiprocessors(q) // (batch * heads)) if deterministic else None
    accumulated = _accumulator(q, (padded, heads, _width(width)), copies)
    _share_keys(k, dk, dv, heads)
    del accumulated
    return dq, dk, dv, sums


KERNELS: dict[str, Callable[..., Tensors]] = {
    "fwd": fwd,
    "varlen_fwd": varlen_fwd,
    "bwd": bwd,
    "varlen_bwd": varlen_bwd,
}
"""The extension's functions, by name."""


def _multiprocessors(tensor: torch.Tensor) -> int:
    return torch.cuda.get_device_properties(tensor.device).multi_processor_count


def rounded(rows: int) -> int:
    """Rows, or columns, up to a multiple of a block's 128."""
    return -(-rows // _BLOCK) * _BLOCK


def _width(width: int) -> int:
    """`head_size_rounded`."""
    block = 32 if width <= 128 else 64
    return -(-width // block) * block


def _gradients(q: Any, k: Any, v: Any, dq: Any, dk: Any, dv: Any) -> Tensors:
    given = zip((q, k, v), (dq, dk, dv), strict=True)
    dq, dk, dv = (torch.empty_like(x) if gradient is None else gradient for x, gradient in given)
    return dq, dk, dv


def _accumulator(q: Any, size: tuple[int, ...], copies: int | None) -> torch.Tensor:
    """The gradient of the queries; if deterministic, one copy per block of multiprocessors."""
    if copies is None:
        made: torch.Tensor = q.new_empty(size, dtype=torch.float32)
    else:
        made = q.new_zeros((copies, *size), dtype=torch.float32)
    return made


def _share_keys(k: Any, dk: Any, dv: Any, heads: int) -> None:
    """Sum the gradients of heads that share keys and values."""
    *outer, shared, width = k.shape
    if shared == heads:
        return
    of_keys, of_values = (k.new_empty((*outer, heads, width)) for _ in range(2))
    grouped = (*outer, shared, heads // shared, width)
    torch.sum(of_keys.reshape(grouped), len(outer) + 1, out=dk)
    torch.sum(of_values.reshape(grouped), len(outer) + 1, out=dv)


def _splits(
    batch: int, heads: int, rows: int, columns: int, width: int, multiprocessors: int
) -> int:
    """`num_splits_heuristic`: the fewest splits that are nearly as efficient as the best."""
    block = 256 if width <= 64 else 128 if width <= 128 else 64
    blocks, work, slots = -(-columns // block), batch * heads * -(-rows // 64), 2 * multiprocessors
    if work >= 0.8 * slots:
        return 1

    def efficiency(splits: int) -> float:
        waves = work * splits / slots
        return waves / math.ceil(waves)

    counts = range(1, min(_MOST_SPLITS, slots, blocks) + 1)
    able = [n for n in counts if n == 1 or -(-blocks // n) != -(-blocks // (n - 1))]
    best = max(map(efficiency, able), default=0.0)
    return next((n for n in able if efficiency(n) >= 0.85 * best), 1)
