"""FlashAttention 3 where it is not installed: `flash_attn_interface`.

Its two operators are registered as the package registers them, with the same schemas and shape
rules, so that Dynamo, AOTAutograd and Inductor treat them like the package's
(hopper/flash_attn_interface.py of flash-attention, as of 2026-08-15); the kernels' allocations are
in passes/kernels/flash_attention_3.py.

Not covered: functions for generation (`flash_attn_with_kvcache`, `flash_attn_combine`, scheduler
metadata).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch

from graphmem.gpus import Gpu
from graphmem.virtual_device.stand_ins import StandIn, lacking
from graphmem.virtual_device.stand_ins.flash_attn_3_tiles import (
    mask_of,
    rounded,
    rounded_width,
    tile_of,
)
from graphmem.virtual_device.stand_ins.operators import register_operator

_FORWARD = """(Tensor q, Tensor k, Tensor v, Tensor? k_new=None, Tensor? v_new=None,
 Tensor? qv=None, Tensor? out_=None, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None,
 Tensor? cu_seqlens_k_new=None, Tensor? seqused_q=None, Tensor? seqused_k=None,
 SymInt? max_seqlen_q=None, SymInt? max_seqlen_k=None, Tensor? page_table=None,
 Tensor? kv_batch_idx=None, Tensor? leftpad_k=None, Tensor? rotary_cos=None,
 Tensor? rotary_sin=None, Tensor? seqlens_rotary=None, Tensor? q_descale=None,
 Tensor? k_descale=None, Tensor? v_descale=None, float? softmax_scale=None, bool causal=False,
 SymInt window_size_left=-1, SymInt window_size_right=-1, SymInt attention_chunk=0,
 float softcap=0., bool rotary_interleaved=True, Tensor? scheduler_metadata=None,
 SymInt num_splits=1, bool? pack_gqa=None, SymInt sm_margin=0)
 -> (Tensor, Tensor, Tensor, Tensor)"""
_BACKWARD = """(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse,
 Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, Tensor? sequed_q=None,
 Tensor? sequed_k=None, SymInt? max_seqlen_q=None, SymInt? max_seqlen_k=None,
 Tensor(a12!)? dq=None, Tensor(a13!)? dk=None, Tensor(a14!)? dv=None,
 float? softmax_scale=None, bool is_causal=False, SymInt window_size_left=-1,
 SymInt window_size_right=-1, float softcap=0., bool deterministic=False,
 SymInt sm_margin=0) -> Tensor"""


def _forward_shapes(
    q: Any, k: Any, v: Any, *rest: Any, cu_seqlens_q: Any = None, num_splits: int = 1, **_: Any
) -> Any:
    """`_flash_attn_forward_fake`; calls pass later arguments by name or not at all."""
    starts = rest[4] if len(rest) > 4 else cu_seqlens_q
    *outer, heads, _width = q.shape
    dtype = torch.bfloat16 if q.dtype == torch.float8_e4m3fn else q.dtype
    rows = (outer[0], heads, outer[1]) if starts is None else (heads, outer[0])
    out = q.new_empty((*outer, heads, v.shape[-1]), dtype=dtype)
    sums = q.new_empty(rows, dtype=torch.float32)
    of_splits = (num_splits, *rows)
    partial = ((*of_splits, v.shape[-1]), of_splits) if num_splits > 1 else ((0,), (0,))
    return out, sums, *(q.new_empty(size, dtype=torch.float32) for size in partial)


def _backward_shapes(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    softmax_lse: Any,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    sequed_q: Any = None,
    sequed_k: Any = None,
    max_seqlen_q: Any = None,
    max_seqlen_k: Any = None,
    dq: Any = None,
    dk: Any = None,
    dv: Any = None,
    softmax_scale: Any = None,
    is_causal: bool = False,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    *rest: Any,
    **named: Any,
) -> Any:
    """`_flash_attn_backward_fake`: the row sums, padded to the kernel's tiles."""
    batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    queries, keys = (
        (q.shape[1], k.shape[1]) if cu_seqlens_q is None else (max_seqlen_q, max_seqlen_k)
    )
    mask = mask_of(is_causal, window_size_left, window_size_right, queries, keys)
    width = rounded_width(max(q.shape[-1], v.shape[-1]))
    tile, _ = tile_of(width, mask, softcap > 0, torch.cuda.get_device_capability(q.device))
    heads = q.shape[-2]
    size: tuple[Any, ...] = (batch, heads, rounded(queries, tile))
    if cu_seqlens_q is not None:
        size = (heads, rounded(q.shape[0] + batch * tile, tile))
    return q.new_empty(size, dtype=torch.float32)


@functools.cache
def _register_operators() -> None:
    """Register the operators, once."""
    on_card = "kernels, which run on a card only"
    kernel = lacking("flash_attn_3", [on_card])[on_card]
    for name, mutated, schema, shapes in (
        ("forward", (), _FORWARD, _forward_shapes),
        ("backward", ("dq", "dk", "dv"), _BACKWARD, _backward_shapes),
    ):
        register_operator(f"flash_attn_3::_flash_attn_{name}", kernel, schema, shapes, mutated)


class _Attention(torch.autograd.Function):
    """`FlashAttnFunc` and `FlashAttnVarlenFunc`, with their saved tensors and order of calls."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Any,
        k: Any,
        v: Any,
        starts: Any,
        starts_k: Any,
        used: Any,
        used_k: Any,
        longest: Any,
        longest_k: Any,
        scale: Any,
        causal: Any,
        qv: Any,
        descales: Any,
        window: Any,
        chunk: Any,
        softcap: Any,
        splits: Any,
        pack_gqa: Any,
        deterministic: Any,
        margin: Any,
        returns_sums: Any,
    ) -> Any:
        if scale is None:
            scale = (q.shape[-1] + (qv.shape[-1] if qv is not None else 0)) ** (-0.5)
        out, sums = _attend(
            *((q, k, v), scale, causal, descales, window, chunk, softcap, margin),
            qv=qv,
            cu_seqlens_q=starts,
            cu_seqlens_k=starts_k,
            seqused_q=used,
            seqused_k=used_k,
            max_seqlen_q=longest,
            max_seqlen_k=longest_k,
            num_splits=splits,
            pack_gqa=pack_gqa,
        )
        ctx.save_for_backward(q, k, v, out, sums, starts, starts_k, used, used_k)
        ctx.longest = longest
        ctx.longest_k = longest_k
        ctx.chunk = chunk
        ctx.options = (scale, causal, window[0], window[1], softcap, deterministic, margin)
        return (out, sums) if returns_sums else out

    @staticmethod
    def backward(ctx: Any, dout: Any, *others: Any) -> Any:
        q, k, v, out, sums, starts, starts_k, used, used_k = ctx.saved_tensors
        _check_chunk(ctx.chunk)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        torch.ops.flash_attn_3._flash_attn_backward(
            dout,
            q,
            k,
            v,
            out,
            sums,
            starts,
            starts_k,
            used,
            used_k,
            ctx.longest,
            ctx.longest_k,
            dq,
            dk,
            dv,
            *ctx.options,
        )
        dq, dk, dv = (dq[..., : q.shape[-1]], dk[..., : k.shape[-1]], dv[..., : v.shape[-1]])
        return (dq, dk, dv, *[None] * 18)


class _PackedAttention(torch.autograd.Function):
    """`FlashAttnQKVPackedFunc`: one tensor holds queries, keys and values, and so its gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        qkv: Any,
        scale: Any,
        causal: Any,
        descales: Any,
        window: Any,
        chunk: Any,
        softcap: Any,
        deterministic: Any,
        query_heads: Any,
        margin: Any,
        returns_sums: Any,
    ) -> Any:
        scale = qkv.shape[-1] ** (-0.5) if scale is None else scale
        q, k, v = _unpacked(qkv, query_heads)
        out, sums = _attend((q, k, v), scale, causal, descales, window, chunk, softcap, margin)
        ctx.save_for_backward(q, k, v, out, sums)
        ctx.size = qkv.shape
        ctx.query_heads = query_heads
        ctx.chunk = chunk
        ctx.options = (scale, causal, window[0], window[1], softcap, deterministic, margin)
        return (out, sums) if returns_sums else out

    @staticmethod
    def backward(ctx: Any, dout: Any, *others: Any) -> Any:
        q, k, v, out, sums = ctx.saved_tensors
        _check_chunk(ctx.chunk)
        gradient = torch.empty(ctx.size, dtype=q.dtype, device=q.device)
        parts = _unpacked(gradient, ctx.query_heads)
        absent = [None] * 6
        torch.ops.flash_attn_3._flash_attn_backward(
            dout, q, k, v, out, sums, *absent, *parts, *ctx.options
        )
        return (gradient[..., : dout.shape[-1]], *[None] * 10)


def _attend(
    operands: Any,
    scale: Any,
    causal: Any,
    descales: Any,
    window: Any,
    chunk: Any,
    softcap: Any,
    margin: Any,
    **others: Any,
) -> tuple[Any, Any]:
    """The output for queries, keys and values, and the sums of its softmax."""
    out, sums, *_rest = torch.ops.flash_attn_3._flash_attn_forward(
        *operands,
        q_descale=descales[0],
        k_descale=descales[1],
        v_descale=descales[2],
        softmax_scale=scale,
        causal=causal,
        window_size_left=window[0],
        window_size_right=window[1],
        attention_chunk=chunk,
        softcap=softcap,
        sm_margin=margin,
        **others,
    )
    return out, sums


def _unpacked(qkv: Any, query_heads: int | None) -> Any:
    """Queries, keys and values: stacked, or with `query_heads` one after another in the heads."""
    if qkv.dim() == 5:
        assert qkv.shape[-3] == 3
        return qkv.unbind(dim=-3)
    assert qkv.dim() == 4
    assert query_heads is not None
    heads = (qkv.shape[2] - query_heads) // 2
    assert heads * 2 + query_heads == qkv.shape[2]
    return qkv.split([query_heads, heads, heads], dim=-2)


def _check_chunk(chunk: int) -> None:
    assert chunk == 0, "FA3 backward does not support attention_chunk"


def flash_attn_qkvpacked_func(
    qkv: Any,
    softmax_scale: float | None = None,
    causal: bool = False,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    window_size: Any = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    num_heads_q: int | None = None,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """Attention over one tensor of queries, keys and values, as `_unpacked` takes it apart."""
    return _PackedAttention.apply(  # type: ignore[no-untyped-call]
        *(qkv, softmax_scale, causal, (q_descale, k_descale, v_descale), window_size),
        *(attention_chunk, softcap, deterministic, num_heads_q, sm_margin, return_attn_probs),
    )


def flash_attn_func(
    q: Any,
    k: Any,
    v: Any,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    window_size: Any = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """Attention over tensors of shape (batch, sequence, heads, width)."""
    return _Attention.apply(  # type: ignore[no-untyped-call]
        *(q, k, v, None, None, None, None, None, None, softmax_scale, causal, qv),
        (q_descale, k_descale, v_descale),
        *(window_size, attention_chunk, softcap, num_splits, pack_gqa, deterministic, sm_margin),
        return_attn_probs,
    )


def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Any = None,
    seqused_k: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    window_size: Any = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """Attention over packed sequences: tensors of shape (total rows, heads, width)."""
    return _Attention.apply(  # type: ignore[no-untyped-call]
        *(q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, max_seqlen_q, max_seqlen_k),
        *(softmax_scale, causal, qv, (q_descale, k_descale, v_descale), window_size),
        *(attention_chunk, softcap, num_splits, pack_gqa, deterministic, sm_margin),
        return_attn_probs,
    )


def _modules(gpu: Gpu) -> Mapping[str, Mapping[str, Any]]:
    _register_operators()
    interface: dict[str, Any] = {
        "flash_attn_func": flash_attn_func,
        "flash_attn_qkvpacked_func": flash_attn_qkvpacked_func,
        "flash_attn_varlen_func": flash_attn_varlen_func,
    }
    interface.update(lacking("flash_attn_3", ("flash_attn_with_kvcache", "flash_attn_combine")))
    interface["flash_attn_interface"] = SimpleNamespace(**interface)  # of the hub's kernel
    return {
        "flash_attn_3": {"__version__": STAND_IN.version},
        "flash_attn_interface": interface,
        "flash_attn_3.flash_attn_interface": interface,
    }


STAND_IN = StandIn(
    distribution="flash_attn_3",
    version="3.0.0",
    source="flash-attention, hopper/flash_api.cpp and flash_attn_interface.py as of 2026-08-15",
    modules=_modules,
    hub=dict.fromkeys(("flashattn3", "flashattention3"), "flash_attn_interface"),
)
