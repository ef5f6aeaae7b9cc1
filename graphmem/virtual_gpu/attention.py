"""`scaled_dot_product_attention` as the named GPU would run it.

A CPU build takes the math path for CUDA tensors. Here a kernel registered for `AutogradCUDA`
chooses the backend by the rules of `sdp_utils.cpp` (aten/src/ATen/native/transformers/cuda) and
calls the real operator of that backend, whose meta kernel and derivative every build has. Autocast
has done its casts by then, as on a card.

Not covered yet: cuDNN attention, which wheels from torch 2.11 on prefer on compute capability 9.0
and 10.0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from graphmem.gpus import Gpu

aten = torch.ops.aten

_FLASH_MAX_HEAD_DIM = 256
_FLASH_DIM_MULTIPLE = 8
_HALF = (torch.float16, torch.bfloat16)


@contextmanager
def attention_of(gpu: Gpu) -> Iterator[None]:
    """Answer attention on fake CUDA tensors as `gpu` would while the context is open."""
    library = torch.library.Library("aten", "IMPL")

    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        if _takes_flash(gpu, query, key, value, attn_mask, is_causal):
            return _flash(query, key, value, dropout_p, is_causal, scale)
        if _takes_efficient(query, key, value, enable_gqa):
            return _efficient(query, key, value, attn_mask, dropout_p, is_causal, scale)
        output, _ = aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        return output

    try:
        for key in ("AutogradCUDA", "CUDA"):
            library.impl("scaled_dot_product_attention", attention, key)
        yield
    finally:
        library._destroy()


def _takes_flash(
    gpu: Gpu,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
) -> bool:
    """`use_flash_attention`: half precision, no mask, equal head sizes up to 256, sm80 or newer."""
    return (
        torch.backends.cuda.flash_sdp_enabled()
        and gpu.compute_capability >= (8, 0)
        and mask is None
        and query.dtype in _HALF
        and query.dim() == 4
        and query.shape[-1] == key.shape[-1] == value.shape[-1] <= _FLASH_MAX_HEAD_DIM
        and (not is_causal or query.shape[-2] == key.shape[-2])
        and _strides_end_in_one(query, key, value)
    )


def _takes_efficient(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool
) -> bool:
    """`use_mem_efficient_attention`: aligned head sizes, equal head counts."""
    alignment = 8 if query.dtype in _HALF else 4
    return (
        torch.backends.cuda.mem_efficient_sdp_enabled()
        and query.dtype in (*_HALF, torch.float32)
        and query.dim() == 4
        and not enable_gqa
        and query.shape[1] == key.shape[1] == value.shape[1]
        and query.shape[-1] % alignment == 0
        and value.shape[-1] % alignment == 0
        and _strides_end_in_one(query, key, value)
    )


def _strides_end_in_one(*tensors: torch.Tensor) -> bool:
    return all(tensor.stride(-1) == 1 for tensor in tensors)


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    """`scaled_dot_product_attention` pads head sizes to a multiple of 8 for flash, and slices."""
    head_dim = query.shape[-1]
    if scale is None:
        scale = 1 / math.sqrt(head_dim)
    padding = -head_dim % _FLASH_DIM_MULTIPLE
    if padding:
        query, key, value = (
            torch.nn.functional.pad(tensor, (0, padding)) for tensor in (query, key, value)
        )
    output: torch.Tensor = aten._scaled_dot_product_flash_attention(
        query, key, value, dropout_p, is_causal, False, scale=scale
    )[0]
    return output[..., :head_dim] if padding else output


def _efficient(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    needs_grad = torch.is_grad_enabled() and any(
        tensor.requires_grad for tensor in (query, key, value)
    )
    bias = None if mask is None else _additive_mask(mask, query, key)
    output: torch.Tensor = aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, needs_grad, dropout_p, is_causal, scale=scale
    )[0]
    return output


def _additive_mask(
    mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor:
    """`convert_boolean_attn_mask`, then `preprocess_mask`: pad the last size to a multiple of 8 or
    16 and expand to every head (aten/src/ATen/native/transformers/attention.cpp)."""
    if mask.dtype == torch.bool:
        additive = torch.zeros_like(mask, dtype=query.dtype)
        additive.masked_fill_(mask.logical_not(), float("-inf"))
        mask = additive
    alignment = 16 if query.dtype == torch.uint8 else 8
    last = mask.shape[-1]
    if last % alignment:
        mask = torch.nn.functional.pad(mask, (0, alignment - last % alignment))[..., :last]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
