"""xformers where it is not installed: attention by PyTorch's kernels, as its own Python calls them.

Read from xformers 0.0.35, xformers/ops/fmha/.

(1) Tensors in 16 bits, at most 256 wide, without a tensor as mask take FlashAttention on compute
    capability 8.0 or newer (`flash.FwOp`), others the memory-efficient kernel, up to 9.0
    (`cutlass.FwOp`). Without a kernel it is xformers' error that is raised (xformers_kernels.py).
(2) `_fMHA` keeps queries, keys, values, output and log-sum-exp, and returns the latter as well, of
    which autograd makes a gradient of zeros (`__init__.py`). With dropout it keeps the state of the
    generator.
(3) If no operand requires a gradient, only the forward pass runs.

Not covered: heads in groups (five dimensions), `op=`, `output_dtype=`, deterministic algorithms,
other masks than those here.
The package itself, where it can be installed, has all of it (../libraries/xformers.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from graphmem.gpus import Gpu
from graphmem.virtual_device.messages import NoStandInPartError
from graphmem.virtual_device.stand_ins import StandIn, lacking
from graphmem.virtual_device.stand_ins.xformers_kernels import (
    EFFICIENT,
    FLASH,
    AttentionKernel,
    taken,
)
from graphmem.virtual_device.stand_ins.xformers_masks import (
    INSTALL,
    AttentionBias,
    BlockDiagonalCausalMask,
    BlockDiagonalMask,
    LowerTriangularMask,
)
from graphmem.virtual_device.stand_ins.xformers_unbind import unbind

_REFUSED = "attention with op=, output_dtype=, heads in groups or deterministic algorithms"
_NOT_HERE = (
    "memory_efficient_attention_partial memory_efficient_attention_backward "
    "memory_efficient_attention_forward_requires_grad merge_attentions AttentionOp "
    "AttentionOpBase MemoryEfficientAttentionCkOp MemoryEfficientAttentionSplitKCkOp "
    "MemoryEfficientAttentionCutlassFwdFlashBwOp MemoryEfficientAttentionCutlassOp "
    "MemoryEfficientAttentionFlashAttentionOp ALL_FW_OPS ALL_BW_OPS"
).split()
_OTHER_OPERATORS = (
    "index_select_cat scaled_index_add ColumnParallelLinear RowParallelLinear RMSNorm rope_padded "
    "sequence_parallel_leading_matmul sequence_parallel_trailing_matmul "
    "fused_allgather_and_anything fused_allgather_and_linear fused_anything_and_reducescatter "
    "fused_linear_and_reducescatter SwiGLU SwiGLUEagerOp SwiGLUOp SwiGLUOpDispatch swiglu "
    "tiled_matmul get_stack_strides stack_or_none sparsify24 sparsify24_like Sparse24Tensor "
    "masked_matmul"
).split()
_MASKS_NOT_HERE = (
    "BlockDiagonalCausalFromBottomRightMask BlockDiagonalCausalLocalAttentionFromBottomRightMask "
    "BlockDiagonalCausalLocalAttentionMask BlockDiagonalCausalLocalAttentionPaddedKeysMask "
    "BlockDiagonalCausalWithOffsetGappyKeysMask BlockDiagonalCausalWithOffsetPaddedKeysMask "
    "BlockDiagonalGappyKeysMask BlockDiagonalLocalAttentionPaddedKeysMask "
    "BlockDiagonalPaddedKeysMask LocalAttentionFromBottomRightMask "
    "LowerTriangularFromBottomRightLocalAttentionMask LowerTriangularFromBottomRightMask "
    "LowerTriangularMaskWithTensorBias PagedBlockDiagonalCausalWithOffsetGappyKeysMask "
    "PagedBlockDiagonalCausalWithOffsetPaddedKeysMask PagedBlockDiagonalGappyKeysMask "
    "PagedBlockDiagonalPaddedKeysMask"
).split()


class _Attention(torch.autograd.Function):
    """Clause (2)."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, bias: Any, p: float, scale: Any) -> Any:
        kernel = _KERNELS[taken(q, k, v, bias, p, trains=True)]
        out, sums, *state = kernel.forward(q, k, v, bias, p, scale, True)
        ctx.save_for_backward(q, k, v, out, sums)
        ctx.state = state if p else [None, None]
        ctx.kernel, ctx.options = kernel, (bias, p, scale)
        return out, sums

    @staticmethod
    def backward(ctx: Any, gradient: Any, gradient_of_sums: Any) -> Any:
        gradients = ctx.kernel.backward(gradient, *ctx.saved_tensors, ctx.state, *ctx.options)
        return (*gradients, None, None)


class _Flash:
    """`flash.FwOp` and `flash.BwOp` over `aten._flash_attention_*`."""

    @staticmethod
    def forward(q: Any, k: Any, v: Any, bias: Any, p: float, scale: Any, keeps: bool) -> Any:
        starts, longest, rows = _packed(q, k, bias)
        q, k, v = rows(q), rows(k), rows(v)
        out, sums, state = torch.ops.aten._flash_attention_forward(
            q, k, v, *starts, *longest, p, _is_causal(bias), False, scale=scale
        )[:3]
        return (out, sums, state) if starts[0] is None else (out[None], sums[None], state)

    @staticmethod
    def backward(
        gradient: Any, q: Any, k: Any, v: Any, out: Any, sums: Any, state: Any, *options: Any
    ) -> Any:
        bias, p, scale = options
        starts, longest, rows = _packed(q, k, bias)
        sums = sums if starts[0] is None else sums[0]
        given = (rows(gradient).contiguous(), rows(q), rows(k), rows(v), rows(out), sums)
        made = torch.ops.aten._flash_attention_backward(
            *given, *starts, *longest, p, _is_causal(bias), state[0], state[0], scale=scale
        )
        gradients = zip(made, (q, k, v), strict=True)
        return (*(each.reshape(of.shape) for each, of in gradients), None)


class _Efficient:
    """`cutlass.FwOp` and `cutlass.BwOp` over `aten._efficient_attention_*`."""

    @staticmethod
    def forward(q: Any, k: Any, v: Any, bias: Any, p: float, scale: Any, keeps: bool) -> Any:
        tensor, sequences = _mask(q, k, bias)
        given = (q, k, v, tensor, *sequences, p, int(_is_causal(bias)), keeps)
        made: Any = torch.ops.aten._efficient_attention_forward(*given, scale=scale)[:4]
        return made

    @staticmethod
    def backward(
        gradient: Any, q: Any, k: Any, v: Any, out: Any, sums: Any, state: Any, *options: Any
    ) -> Any:
        bias, p, scale = options
        tensor, sequences = _mask(q, k, bias)
        trains = tensor is not None and tensor.requires_grad
        seeds = state if p else [torch.Tensor(), torch.Tensor()]
        given = (gradient.to(q.dtype), q, k, v, tensor, out, *sequences, sums, p, *seeds)
        made = torch.ops.aten._efficient_attention_backward(
            *given, int(_is_causal(bias)), trains, scale=scale
        )
        return (*made[:3], made[3] if trains else None)


_KERNELS: dict[AttentionKernel, Any] = {FLASH: _Flash, EFFICIENT: _Efficient}


def _is_causal(bias: Any) -> bool:
    return isinstance(bias, (LowerTriangularMask, BlockDiagonalCausalMask))


def _packed(q: Any, k: Any, bias: Any) -> Any:
    """Starts and longest lengths of packed sequences, and what drops the dimension before them."""
    if not isinstance(bias, BlockDiagonalMask):
        return (None, None), (q.shape[1], k.shape[1]), lambda tensor: tensor
    queries, keys = bias.q_seqinfo, bias.k_seqinfo
    starts, longest = (queries.seqstart, keys.seqstart), (queries.max_seqlen, keys.max_seqlen)
    return starts, longest, lambda tensor: tensor.reshape(-1, *tensor.shape[2:])


def _mask(q: Any, k: Any, bias: Any) -> Any:
    """A mask as the memory-efficient kernel takes it: a tensor; starts and longest lengths."""
    starts, longest, _ = _packed(q, k, bias)
    tensor = bias if isinstance(bias, torch.Tensor) else None
    return tensor, (*starts, *(longest if isinstance(bias, BlockDiagonalMask) else (-1, -1)))


def memory_efficient_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: Any = None,
    output_dtype: Any = None,
    is_forward: bool = False,
) -> Any:
    """Attention of (batch, rows, heads, width), or (batch, rows, width)."""
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    if op is not None or output_dtype is not None or query.dim() > 4 or is_deterministic:
        raise NoStandInPartError("xformers", _REFUSED, INSTALL)
    shape = (*query.shape[:-1], value.shape[-1])
    if query.dim() == 3:
        query, key, value = (each.unsqueeze(2) for each in (query, key, value))
        attn_bias = attn_bias.unsqueeze(1) if isinstance(attn_bias, torch.Tensor) else attn_bias
    given = (query, key, value, attn_bias, p, scale)
    if is_forward or not any(each.requires_grad for each in given[:3]):
        kernel = _KERNELS[taken(*given[:5], trains=False)]
        return kernel.forward(*given, False)[0].reshape(shape)
    return _Attention.apply(*given)[0].reshape(shape)  # type: ignore[no-untyped-call]


def _modules(gpu: Gpu) -> Mapping[str, Mapping[str, Any]]:
    here = (AttentionBias, LowerTriangularMask, BlockDiagonalMask, BlockDiagonalCausalMask)
    masks = {
        **{each.__name__: each for each in here},
        **lacking("xformers", _MASKS_NOT_HERE, INSTALL),
    }
    attention = {
        "memory_efficient_attention": memory_efficient_attention,
        "memory_efficient_attention_forward": partial(memory_efficient_attention, is_forward=True),
        **lacking("xformers", _NOT_HERE, INSTALL),
    }
    others = {"unbind": unbind, **lacking("xformers", _OTHER_OPERATORS, INSTALL)}
    base = {"AttentionBias": AttentionBias, "LowerTriangularMask": LowerTriangularMask}
    return {
        "xformers": {"__version__": STAND_IN.version},
        "xformers.ops": {**attention, **others, **base, "AttentionMask": AttentionBias},
        "xformers.ops.fmha": {**attention, **base, "BlockDiagonalMask": BlockDiagonalMask},
        "xformers.ops.fmha.attn_bias": masks,
    }


STAND_IN = StandIn(
    distribution="xformers",
    version="0.0.35",
    source="xformers 0.0.35, xformers/ops/fmha/__init__.py, flash.py and cutlass.py",
    modules=_modules,
    oldest="0.0.34",
    install=INSTALL,
)
