"""flash-attn 2's operators, registered as its Python part registers them.

So Dynamo, AOTAutograd and Inductor treat them like the package's
(flash_attn/flash_attn_interface.py of 2.8.3): compiled code does not break at them, and a policy of
selective checkpointing finds them by name. Their kernels are the stand-in's.

Not covered: paged, padded and unequally used keys, which the schema of packed sequences leaves out.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from graphmem.virtual_device.stand_ins.flash_attn_kernels import KERNELS, Tensors, rounded
from graphmem.virtual_device.stand_ins.operators import register_operator

_RESULTS = "(Tensor, Tensor, Tensor, Tensor)"
_LENGTHS = """Tensor cu_seqlens_q, Tensor cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k,"""
_WINDOW = "SymInt window_size_left, SymInt window_size_right, float softcap"
_FORWARD = f"""(Tensor q, Tensor k, Tensor v, float dropout_p, float softmax_scale, bool causal,
 {_WINDOW}, Tensor? alibi_slopes, bool return_softmax) -> {_RESULTS}"""
_VARLEN_FORWARD = f"""(Tensor q, Tensor k, Tensor v, {_LENGTHS} float dropout_p,
 float softmax_scale, bool causal, SymInt window_size_left=-1, SymInt window_size_right=-1,
 float softcap=0., Tensor? alibi_slopes=None, bool return_softmax=False) -> {_RESULTS}"""
_OPERANDS = """Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse,
 Tensor(a6!)? dq, Tensor(a7!)? dk, Tensor(a8!)? dv,"""
_REST = f"""float dropout_p, float softmax_scale, bool causal, {_WINDOW}, Tensor? alibi_slopes,
 bool deterministic, Tensor? rng_state"""
_BACKWARD = f"({_OPERANDS} {_REST}) -> Tensor"
_VARLEN_BACKWARD = f"({_OPERANDS} {_LENGTHS} {_REST}) -> Tensor"


@functools.cache
def register() -> None:
    """Register the operators, once."""
    gradients = ("dq", "dk", "dv")
    for name, mutated, schema, kernel, shapes in (
        ("forward", (), _FORWARD, _forward, _forward_shapes),
        ("varlen_forward", (), _VARLEN_FORWARD, _varlen_forward, _varlen_forward_shapes),
        ("backward", gradients, _BACKWARD, _backward, _backward_shapes),
        ("varlen_backward", gradients, _VARLEN_BACKWARD, _varlen_backward, _varlen_backward_shapes),
    ):
        register_operator(f"flash_attn::_flash_attn_{name}", kernel, schema, shapes, mutated)


def _contiguous(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """`maybe_contiguous`."""
    return [each.contiguous() if each.stride(-1) != 1 else each for each in tensors]


def _forward(q: Any, k: Any, v: Any, *options: Any) -> Tensors:
    *rest, slopes, returns_softmax = options
    args = (*_contiguous(q, k, v), None, slopes, *rest, returns_softmax, None)
    return KERNELS["fwd"](*args)


def _forward_shapes(q: Any, k: Any, v: Any, *options: Any) -> Tensors:
    """`_flash_attn_forward_fake`."""
    q, k, v = _contiguous(q, k, v)
    batch, rows, heads, _ = q.shape
    of_all = (batch, heads, rounded(rows), rounded(k.shape[1]))
    return _results(q, (batch, heads, rows), of_all if options[-1] else (0,))


def _varlen_forward(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    return_softmax: bool = False,
) -> Tensors:
    lengths = (cu_seqlens_q, cu_seqlens_k, None, None, None, alibi_slopes)
    longest = (max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, False, causal)
    window = (window_size_left, window_size_right, softcap, return_softmax, None)
    return KERNELS["varlen_fwd"](*_contiguous(q, k, v), None, *lengths, *longest, *window)


def _varlen_forward_shapes(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    *rest: Any,
    return_softmax: bool = False,
    **named: Any,
) -> Tensors:
    """`_flash_attn_varlen_forward_fake`; calls pass `return_softmax` by name or not at all."""
    q, k, v = _contiguous(q, k, v)
    total, heads, _ = q.shape
    returns = rest[7] if len(rest) > 7 else return_softmax
    of_all = (cu_seqlens_q.numel() - 1, heads, rounded(max_seqlen_q), rounded(max_seqlen_k))
    return _results(q, (heads, total), of_all if returns else (0,))


def _results(q: Any, sums: Any, probabilities: Any) -> Tensors:
    return (
        torch.empty_like(q),
        q.new_empty(sums, dtype=torch.float32),
        q.new_empty(probabilities),
        q.new_empty((2,), dtype=torch.int64),
    )


def _backward(dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *rest: Any) -> Any:
    dq, dk, dv, *options, slopes, deterministic, state = rest
    operands = (*_contiguous(dout, q, k, v, out), lse, dq, dk, dv)
    return KERNELS["bwd"](*operands, slopes, *options, deterministic, None, state)[-1]


def _backward_shapes(dout: Any, q: Any, k: Any, *rest: Any, **named: Any) -> Any:
    """`_flash_attn_backward_fake`."""
    batch, rows, heads, _ = q.shape
    return q.new_empty((batch, heads, rounded(rows)), dtype=torch.float32)


def _varlen_backward(dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *rest: Any) -> Any:
    dq, dk, dv, starts, starts_k, most, most_k, dropout, scale, *options = rest
    *options, slopes, deterministic, state = options
    operands = (*_contiguous(dout, q, k, v, out), lse, dq, dk, dv, starts, starts_k, slopes)
    longest = (most, most_k, dropout, scale, False)
    return KERNELS["varlen_bwd"](*operands, *longest, *options, deterministic, None, state)[-1]


def _varlen_backward_shapes(dout: Any, q: Any, *rest: Any, **named: Any) -> Any:
    """`_flash_attn_varlen_backward_fake`."""
    starts = rest[7]
    total, heads, _ = q.shape
    padded = total + 128 * (starts.numel() - 1)
    return q.new_empty((heads, padded), dtype=torch.float32)
