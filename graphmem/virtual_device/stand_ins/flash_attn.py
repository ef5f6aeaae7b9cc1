"""flash-attn 2 where it is not installed: its functions over the stand-in's kernels.

They save for the backward pass what the package's do (flash_attn/flash_attn_interface.py of 2.8):
queries, keys, values, the output, the log-sum-exp and the random state. Padding is that of
flash_attn/bert_padding.py.

Not covered: `flash_attn.layers`, `losses` and `ops`, which are Triton kernels in Python, and
`flash_attn_with_kvcache`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from graphmem.gpus import Gpu
from graphmem.virtual_device.messages import NoStandInPartError
from graphmem.virtual_device.stand_ins import StandIn, bert_padding, lacking
from graphmem.virtual_device.stand_ins.flash_attn_kernels import kernels

_INSTALL = (
    "FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE FLASH_ATTENTION_FORCE_BUILD=TRUE "
    "pip install flash-attn --no-deps --no-build-isolation"
)
_NO_WINDOW = (-1, -1)


class _Attention(torch.autograd.Function):
    """`FlashAttnFunc` and `FlashAttnVarlenFunc`.

    `packed` has the cumulative lengths and the longest sequences; None for a dense batch.
    """

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, calls: Any, packed: Any, options: Any) -> Any:
        width = q.shape[-1]
        q, k, v = (_padded(each) for each in (q, k, v))
        dropout, window, softcap, slopes, _, returns = options
        rest = (dropout, 0.0)
        window_and_more = (*window, softcap, returns and dropout > 0, None)
        if packed is None:
            args = (q, k, v, None, slopes, *rest, False, *window_and_more)
            out, sums, probabilities, state = calls["fwd"](*args)
        else:
            starts, starts_k, most, most_k = packed
            args = (q, k, v, None, starts, starts_k, None, None, None, slopes, most, most_k, *rest)
            found = calls["varlen_fwd"](*args, False, False, *window_and_more)
            out, sums, probabilities, state = found
        lengths = () if packed is None else packed[:2]
        ctx.save_for_backward(q, k, v, out, sums, state, *lengths)
        ctx.calls, ctx.packed, ctx.options = calls, packed and packed[2:], options
        out = out[..., :width]
        return (out, sums, probabilities) if returns else out

    @staticmethod
    def backward(ctx: Any, dout: Any, *others: Any) -> Any:
        q, k, v, out, sums, state, *starts = ctx.saved_tensors
        dropout, window, softcap, slopes, deterministic, _ = ctx.options
        dq, dk, dv = (torch.empty_like(each) for each in (q, k, v))
        args = (_padded(dout), q, k, v, out, sums, dq, dk, dv)
        rest = (dropout, 0.0, False, *window, softcap, deterministic, None, state)
        if not starts:
            ctx.calls["bwd"](*args, slopes, *rest)
        else:
            rest = (dropout, 0.0, False, False, *window, softcap, deterministic, None, state)
            ctx.calls["varlen_bwd"](*args, *starts, slopes, *ctx.packed, *rest)
        width = dout.shape[-1]
        return (*(each[..., :width] for each in (dq, dk, dv)), *[None] * 3)


def _padded(tensor: torch.Tensor) -> torch.Tensor:
    """`maybe_contiguous`, after padding the width to a multiple of 8."""
    over = tensor.shape[-1] % 8
    tensor = F.pad(tensor, [0, 8 - over]) if over else tensor
    return tensor.contiguous() if tensor.stride(-1) != 1 else tensor


def _interface(gpu: Gpu) -> dict[str, Any]:
    calls = kernels(gpu)

    def attend(q: Any, k: Any, v: Any, packed: Any, options: Any) -> Any:
        return _Attention.apply(q, k, v, calls, packed, options)  # type: ignore[no-untyped-call]

    def flash_attn_func(
        q: Any,
        k: Any,
        v: Any,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: Any = _NO_WINDOW,
        softcap: float = 0.0,
        alibi_slopes: Any = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
    ) -> Any:
        options = (dropout_p, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
        return attend(q, k, v, None, options)

    def flash_attn_varlen_func(
        q: Any,
        k: Any,
        v: Any,
        cu_seqlens_q: Any,
        cu_seqlens_k: Any,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: Any = _NO_WINDOW,
        softcap: float = 0.0,
        alibi_slopes: Any = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        block_table: Any = None,
    ) -> Any:
        if block_table is not None:
            what = "flash_attn_varlen_func with a block_table"
            raise NoStandInPartError("flash_attn", what, _INSTALL)
        packed = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        options = (dropout_p, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
        return attend(q, k, v, packed, options)

    refused = ("qkvpacked", "kvpacked", "varlen_qkvpacked", "varlen_kvpacked", "with_kvcache")
    names = [f"flash_attn_{each}{'' if 'cache' in each else '_func'}" for each in refused]
    names += [f"_flash_attn_{each}" for each in ("forward", "backward")]
    names += [f"_flash_attn_varlen_{each}" for each in ("forward", "backward")]
    return {
        "flash_attn_func": flash_attn_func,
        "flash_attn_varlen_func": flash_attn_varlen_func,
        **lacking("flash_attn", names, _INSTALL),
    }


def _modules(gpu: Gpu) -> Mapping[str, Mapping[str, Any]]:
    interface = _interface(gpu)
    return {
        "flash_attn_2_cuda": kernels(gpu),
        "flash_attn": {**interface, "__version__": STAND_IN.version},
        "flash_attn.flash_attn_interface": {
            **interface,
            "flash_attn_gpu": SimpleNamespace(**kernels(gpu)),  # xformers calls the extension
        },
        "flash_attn.bert_padding": bert_padding.names(),
    }


STAND_IN = StandIn(
    distribution="flash_attn",
    version="2.8.3",
    source="flash-attention 2.8, csrc/flash_attn/flash_api.cpp and flash_attn_interface.py",
    modules=_modules,
    oldest="2.7.0",
    install=_INSTALL,
)
