"""flash-attn 2 where it is not installed: its functions over the stand-in's kernels.

They save for the backward pass what the package's do (flash_attn/flash_attn_interface.py of 2.8):
queries, keys, values, the output, the log-sum-exp and the random state. Padding is that of
flash_attn/bert_padding.py.

Its other extensions are in `flash_attn_extensions`. Not covered: `flash_attn.layers`, `losses` and
`ops`, which are Triton kernels in Python, and `flash_attn_with_kvcache`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature, signature
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from graphmem.gpus import Gpu
from graphmem.virtual_device.messages import NoStandInPartError
from graphmem.virtual_device.stand_ins import StandIn, bert_padding, is_installed, lacking
from graphmem.virtual_device.stand_ins.flash_attn_extensions import NAMES, SOURCE, extensions
from graphmem.virtual_device.stand_ins.flash_attn_kernels import KERNELS
from graphmem.virtual_device.stand_ins.flash_attn_operators import register

_INSTALL = (
    "FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE FLASH_ATTENTION_FORCE_BUILD=TRUE "
    "pip install flash-attn --no-deps --no-build-isolation"
)


class _Attention(torch.autograd.Function):
    """All six `Flash…Func` of the package.

    `given` has queries, keys and values; the last of them may be stacked in one tensor (`KVPacked`,
    `QKVPacked`), and so are their gradients. `lengths` has the cumulative lengths and the longest
    of packed sequences (`Varlen`); None for a dense batch.
    """

    @staticmethod
    def forward(ctx: Any, lengths: Any, options: Any, *given: Any) -> Any:
        q, k, v = (_padded(each) for each in _parts(given))
        dropout, scale, causal, window, softcap, slopes, _, returns = options
        args = (dropout, _scale(scale, given), causal, *window, softcap, slopes)
        returns_all = returns and dropout > 0
        if lengths is None:
            found = torch.ops.flash_attn._flash_attn_forward(q, k, v, *args, returns_all)
        else:
            attend = torch.ops.flash_attn._flash_attn_varlen_forward
            found = attend(q, k, v, *lengths, *args, returns_all)
        out, sums, probabilities, state = found
        ctx.save_for_backward(q, k, v, out, sums, state, *(lengths or ())[:2])
        ctx.longest, ctx.options = (lengths or ())[2:], (*args, options[6])
        ctx.stacked = _stacked(given)
        out = out[..., : given[0].shape[-1]]
        return (out, sums, probabilities) if returns else out

    @staticmethod
    def backward(ctx: Any, dout: Any, *others: Any) -> Any:
        q, k, v, out, sums, state, *starts = ctx.saved_tensors
        gradients = _gradients((q, k, v), ctx.stacked)
        args = (_padded(dout), q, k, v, out, sums, *_parts(gradients))
        if not starts:
            torch.ops.flash_attn._flash_attn_backward(*args, *ctx.options, state)
        else:
            turn = torch.ops.flash_attn._flash_attn_varlen_backward
            turn(*args, *starts, *ctx.longest, *ctx.options, state)
        return (None, None, *(each[..., : dout.shape[-1]] for each in gradients))


def _scale(scale: float | None, given: Sequence[torch.Tensor]) -> float:
    return float(given[0].shape[-1] ** -0.5) if scale is None else scale


def _stacked(given: Sequence[torch.Tensor]) -> int:
    """How many of queries, keys and values the last tensor has."""
    return 4 - len(given)


def _parts(given: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Queries, keys and values."""
    *alone, last = given
    if len(given) == 3:
        return given
    return [*alone, *(last.select(-3, i).detach() for i in range(_stacked(given)))]


def _gradients(operands: Sequence[torch.Tensor], stacked: int) -> list[torch.Tensor]:
    """The gradients of queries, keys and values, the last of them stacked as they were given."""
    if stacked == 1:
        return [torch.empty_like(each) for each in operands]
    *outer, heads, width = operands[-1].shape
    alone = [torch.empty_like(each) for each in operands[:-stacked]]
    return [*alone, operands[-1].new_empty((*outer, stacked, heads, width))]


def _padded(tensor: torch.Tensor) -> torch.Tensor:
    """The width padded to a multiple of 8."""
    over = tensor.shape[-1] % 8
    return F.pad(tensor, [0, 8 - over]) if over else tensor


def _options(
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> tuple[Any, ...]:
    """What all functions take after their tensors and lengths."""
    options = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes)
    return *options, deterministic, return_attn_probs


def _with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Show the options in a function's signature: libraries look there for what they may pass."""
    kinds = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    own = [each for each in signature(function).parameters.values() if each.kind not in kinds]
    shown = sorted((*own, *signature(_options).parameters.values()), key=lambda each: each.kind)
    vars(function)["__signature__"] = Signature(shown)
    return function


def _interface() -> dict[str, Any]:
    def attend(given: Any, lengths: Any, *rest: Any, **named: Any) -> Any:
        options = _options(*rest, **named)
        return _Attention.apply(lengths, options, *given)  # type: ignore[no-untyped-call]

    @_with_options
    def flash_attn_func(q: Any, k: Any, v: Any, *rest: Any, **named: Any) -> Any:
        return attend((q, k, v), None, *rest, **named)

    @_with_options
    def flash_attn_kvpacked_func(q: Any, kv: Any, *rest: Any, **named: Any) -> Any:
        return attend((q, kv), None, *rest, **named)

    @_with_options
    def flash_attn_qkvpacked_func(qkv: Any, *rest: Any, **named: Any) -> Any:
        return attend((qkv,), None, *rest, **named)

    @_with_options
    def flash_attn_varlen_func(
        q: Any,
        k: Any,
        v: Any,
        cu_seqlens_q: Any,
        cu_seqlens_k: Any,
        max_seqlen_q: int,
        max_seqlen_k: int,
        *rest: Any,
        block_table: Any = None,
        **named: Any,
    ) -> Any:
        if block_table is not None:
            what = "flash_attn_varlen_func with a block_table"
            raise NoStandInPartError("flash_attn", what, _INSTALL)
        lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        return attend((q, k, v), lengths, *rest, **named)

    @_with_options
    def flash_attn_varlen_kvpacked_func(
        q: Any,
        kv: Any,
        cu_seqlens_q: Any,
        cu_seqlens_k: Any,
        max_seqlen_q: int,
        max_seqlen_k: int,
        *rest: Any,
        **named: Any,
    ) -> Any:
        lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        return attend((q, kv), lengths, *rest, **named)

    @_with_options
    def flash_attn_varlen_qkvpacked_func(
        qkv: Any, cu_seqlens: Any, max_seqlen: int, *rest: Any, **named: Any
    ) -> Any:
        lengths = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
        return attend((qkv,), lengths, *rest, **named)

    functions = [
        flash_attn_func,
        flash_attn_kvpacked_func,
        flash_attn_qkvpacked_func,
        flash_attn_varlen_func,
        flash_attn_varlen_kvpacked_func,
        flash_attn_varlen_qkvpacked_func,
    ]
    refused = ["flash_attn_with_kvcache"]
    refused += [f"_flash_attn_{each}" for each in ("forward", "backward")]
    refused += [f"_flash_attn_varlen_{each}" for each in ("forward", "backward")]
    given = {each.__name__: each for each in functions}
    return {**given, **lacking("flash_attn", refused, _INSTALL)}


def _modules(gpu: Gpu) -> Mapping[str, Mapping[str, Any]]:
    if not is_installed("flash_attn"):  # its Python part registers them itself
        register()
    interface = _interface()
    return {
        "flash_attn_2_cuda": KERNELS,
        "flash_attn": {**interface, "__version__": STAND_IN.version},
        "flash_attn.flash_attn_interface": {
            **interface,
            "flash_attn_gpu": SimpleNamespace(**KERNELS),  # xformers calls the extension
        },
        "flash_attn.bert_padding": bert_padding.names(),
        **extensions(gpu),
    }


STAND_IN = StandIn(
    distribution="flash_attn",
    version="2.8.3",
    source=(
        "flash-attention 2.8, csrc/flash_attn/flash_api.cpp and flash_attn_interface.py; " + SOURCE
    ),
    modules=_modules,
    oldest="2.7.0",
    install=_INSTALL,
    others=NAMES,
    gone=frozenset({"flash_attn.flash_attention"}),  # of version 1
    hub=dict.fromkeys(("flashattn", "flashattn2", "flashattention2"), "flash_attn"),
)
