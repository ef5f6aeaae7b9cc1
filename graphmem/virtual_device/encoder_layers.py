"""The fast paths of `nn.MultiheadAttention` and `nn.TransformerEncoderLayer`.

In evaluation without gradients both modules call a single operator. Its CUDA kernel calls other
operators, whose results a card allocates, so here it calls them:
  (1) `_native_multi_head_attention` is `native_multi_head_attention_cuda`
      (aten/src/ATen/native/transformers/cuda/attention.cu): one projection, then fused attention if
      a backend takes it without a mask and no weights are wanted, else products and a softmax,
      whose second product overwrites the queries (transformers/attention.cpp, `qkv_projection`,
      `bmm_nn`, `transform0213_gemm_nt_bias`);
  (2) `_masked_softmax` is `masked_softmax_cuda` (cuda/SoftMax.cu), which fills a copy of long rows;
  (3) `_transformer_encoder_layer_fwd` is `transformer_encoder_layer_forward`
      (transformers/transformer.cpp): (1), and a feed-forward network with norms.

Locals die as in C++, last declared first. For nested tensors, see `trace/packed_rows.py`. Not
covered: that up to torch 2.4
heads whose size is not a multiple of 8 were not fused and masks did not prevent fusing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from graphmem.virtual_device.overriding import override

aten = torch.ops.aten

_LONGEST_ROW = 1024  # `softmax_elements` of a persistent softmax
_LONGEST_ROW_BYTES = 4096
_OF_KEYS = 1  # mask_type: a row for each batch

FAST_PATHS = (
    aten._native_multi_head_attention.default,
    aten._transformer_encoder_layer_fwd.default,
)


class FastPaths:
    """Kernels of the two operators.

    Args:
        attend: `scaled_dot_product_attention` on the card.
        is_fused: whether a fused backend of it takes heads that attend to themselves.
    """

    def __init__(
        self, attend: Callable[..., Any], is_fused: Callable[[torch.Tensor], bool]
    ) -> None:
        self._attend = attend
        self._is_fused = is_fused

    def implement(self, library: torch.library.Library) -> None:
        """Register them for the card, without the warning that a build for CUDA has its own."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for func, kernel in zip(FAST_PATHS, (self.attention, self.encoder_layer), strict=True):
                override(library, func.name().removeprefix("aten::"), kernel, "CUDA")

    def attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        embed_dim: int,
        num_head: int,
        qkv_weight: torch.Tensor,
        qkv_bias: torch.Tensor,
        proj_weight: torch.Tensor,
        proj_bias: torch.Tensor,
        mask: torch.Tensor | None = None,
        need_weights: bool = True,
        average_attn_weights: bool = True,
        mask_type: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Clause (1)."""
        heads = query.view(query.shape[0], -1, num_head, embed_dim // num_head).transpose(1, 2)
        is_of_itself = query is key and key is value
        if is_of_itself and not need_weights and mask is None and self._is_fused(heads):
            del heads
            joined = aten.linear(query, qkv_weight, qkv_bias)
            attended = self._fused(joined, num_head)
            made = aten.linear(attended, proj_weight, proj_bias)
            del attended, joined
            return made, None
        del heads
        return _in_products(
            _projected(query, key, value, embed_dim, qkv_weight),
            (qkv_bias, num_head),
            (proj_weight, proj_bias),
            (mask, mask_type),
            (need_weights, average_attn_weights),
        )

    def _fused(self, joined: torch.Tensor, num_head: int) -> torch.Tensor:
        """The result of fused attention, with the heads side by side."""
        batch, steps, width = joined.shape
        shape = batch, steps, num_head, width // 3 // num_head
        parts = [each.view(shape).transpose(1, 2) for each in joined.chunk(3, -1)]
        attended: torch.Tensor = self._attend(*parts)
        return attended.transpose(1, 2).reshape(batch, steps, -1)

    def encoder_layer(
        self,
        src: torch.Tensor,
        embed_dim: int,
        num_heads: int,
        qkv_weight: torch.Tensor,
        qkv_bias: torch.Tensor,
        proj_weight: torch.Tensor,
        proj_bias: torch.Tensor,
        use_gelu: bool,
        norm_first: bool,
        eps: float,
        norm_weight_1: torch.Tensor,
        norm_bias_1: torch.Tensor,
        norm_weight_2: torch.Tensor,
        norm_bias_2: torch.Tensor,
        ffn_weight_1: torch.Tensor,
        ffn_bias_1: torch.Tensor,
        ffn_weight_2: torch.Tensor,
        ffn_bias_2: torch.Tensor,
        mask: torch.Tensor | None = None,
        mask_type: int | None = None,
    ) -> torch.Tensor:
        """Clause (3)."""
        first = [embed_dim], norm_weight_1, norm_bias_1, eps
        second = [embed_dim], norm_weight_2, norm_bias_2, eps
        x = aten.layer_norm(src, *first) if norm_first else src
        of_heads = embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias
        x = self.attention(x, x, x, *of_heads, mask, False, True, mask_type)[0]
        x.add_(src)
        if not norm_first:
            x = aten.layer_norm(x, *first)
        before = x
        if norm_first:
            x = aten.layer_norm(x, *second)
        x = _fed_forward(x, (ffn_weight_1, ffn_bias_1), (ffn_weight_2, ffn_bias_2), use_gelu)
        x.add_(before)
        if not norm_first:
            x = aten.layer_norm(x, *second)
        return x


def _projected(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    weight: torch.Tensor,
) -> torch.Tensor:
    """`qkv_projection`."""
    if query is key and key is value:
        return query.matmul(weight.t())
    inputs = [query, key] if key is value else [query, key, value]
    widths = [embed_dim, *([2 * embed_dim] if key is value else [embed_dim] * 2)]
    weights = weight.split(widths)
    return torch.cat([x.matmul(w.t()) for x, w in zip(inputs, weights, strict=True)], 2)


def _in_products(
    projected: torch.Tensor,
    of_heads: tuple[torch.Tensor, int],
    of_result: tuple[torch.Tensor, torch.Tensor],
    of_mask: tuple[torch.Tensor | None, int | None],
    wanted: tuple[bool, bool],
) -> tuple[torch.Tensor, torch.Tensor | None]:
    bias, heads = of_heads
    need_weights, is_averaged = wanted
    batch, steps, width = projected.shape
    size = width // 3 // heads
    # `_transform_bias_rescale_qkv`
    together = bias.new_empty(3, batch, heads, steps, size)
    del projected
    queries, keys, values = (each.flatten(0, 1) for each in together)
    scores = aten.bmm(queries, keys.transpose(1, 2)).view(batch, heads, steps, steps)
    scores = _masked_softmax(scores, *of_mask)
    aten.bmm.out(scores.flatten(0, 1), values, out=queries)
    weights = scores if need_weights else None
    del scores
    attended = queries.view(batch, heads, steps, size).transpose(1, 2).reshape(batch * steps, -1)
    made = aten.linear(attended, *of_result).view(batch, steps, -1)
    del attended
    if weights is not None and is_averaged:
        weights = weights.sum(1)
        weights /= heads
    del queries, keys, values, together
    return made, weights


def _masked_softmax(
    scores: torch.Tensor, mask: torch.Tensor | None, mask_type: int | None
) -> torch.Tensor:
    """`masked_softmax`, and clause (2)."""
    if mask is None:
        aten._softmax.out(scores, -1, False, out=scores)
        return scores
    if mask.dtype != torch.bool:
        mask = mask.to(torch.bool)
    whole = mask.contiguous()
    made = torch.empty_like(scores)
    length = scores.shape[-1]
    if length > _LONGEST_ROW or length * scores.itemsize > _LONGEST_ROW_BYTES:
        if mask_type == _OF_KEYS and whole.dim() == 2:
            whole = whole[:, None, None]
        filled = scores.masked_fill(whole, -torch.inf)
        made = aten._softmax(filled, -1, False)
        del filled
    return made


def _fed_forward(
    x: torch.Tensor,
    first: tuple[torch.Tensor, torch.Tensor],
    second: tuple[torch.Tensor, torch.Tensor],
    use_gelu: bool,
) -> torch.Tensor:
    """`ffn`."""
    (weight, bias), rows = first, x.flatten(0, 1)
    hidden = aten._addmm_activation(bias, rows, weight.t(), beta=1, alpha=1, use_gelu=use_gelu)
    del rows
    weight, bias = second
    return torch.addmm(bias, hidden, weight.t()).view(*x.shape[:2], -1)
