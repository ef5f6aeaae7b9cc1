"""Configurations of `transformers` with sizes as small as in its own tests.

A configuration class has the defaults of some published model. The names of sizes differ between
classes, so they are classified by meaning: `hidden_size`, `n_embd` and `d_model` are widths.
Nested configurations (text, vision, decoder) are shrunk too.
"""

from __future__ import annotations

import re
from typing import Any

WIDTH, HEADS, LAYERS, VOCABULARY, IMAGE, PATCH = 32, 4, 2, 99, 32, 8
_HEAD = WIDTH // HEADS

_WIDTHS: tuple[tuple[str, int], ...] = (  # set first, and multiplied by `scale`
    (r"(rotary_dim|qk_rope_head_dim|qk_nope_head_dim|v_head_dim|index_head_dim)$", _HEAD),
    (r"(head_dim|d_kv|attention_head_size|key_size|kv_channels|qkv_dim|head_size)$", _HEAD),
    (r"\w*(intermediate_size|ffn_dim|d_ff|d_inner|n_inner|feedforward_dim|ffn_hidden_size)$", 64),
    (r"\w*(mlp_dim|d_ffn|dim_feedforward|feed_forward_size|ffn_size)$", 64),
    (r"(hidden_size|d_model|n_embd|embed_dim|dim|hidden_dim|embedding_size|emb_dim)$", WIDTH),
    (r"\w*(hidden_size|d_model|embed_dim|hidden_dim|projection_dim|embedding_dim)$", WIDTH),
    (r"\w*(proj_size|projection_size|_width|out_hidden_size|feature_size)$", WIDTH),
)
_COUNTS: tuple[tuple[str, int], ...] = (
    (r"(kv_lora_rank|q_lora_rank|lora_rank\w*|rank)$", 16),
    (r"(num_key_value_heads|multi_query_group_num|num_kv_heads|n_head_kv)$", 2),
    (r"(num_\w*attention_heads|attention_heads|num_heads|n_heads?|nhead|attn_heads)$", HEADS),
    (r"(encoder|decoder)_(attention_)?heads$", HEADS),
    (r"(encoder|decoder|text|mamba|linear)\w*_heads$", HEADS),
    (r"(num_experts_per_tok|moe_topk|top_k|moe_k|experts_per_token|num_selected_experts)$", 2),
    (r"(num_local_experts|num_experts|n_routed_experts|moe_num_experts)$", 4),
    (r"(n_group|topk_group|n_shared_experts|num_shared_experts|first_k_dense_replace)$", 1),
    (r"(num_hidden_layers|num_layers|n_layers?|num_layer|depth)$", LAYERS),
    (r"\w*(encoder|decoder|predictor|text|vision|resampler)\w*_layers$", LAYERS),
    (r"\w*vocab_size\w*$", VOCABULARY),
    (r"(max_position_embeddings|n_positions|max_\w*_positions|n_ctx|max_seq_len\w*)$", 128),
    (r"(image_size|img_size|input_size|image_width|image_height)$", IMAGE),
    (r"(patch_size|encoder_stride)$", PATCH),
    (r"(num_mel_bins|feature_dim)$", 16),
    (r"(num_queries|num_query_tokens|num_object_queries|num_latents)$", 6),
    (r"(sliding_window|attention_window|window_size|chunk_size|local_attn_window_size)$", 4),
)
_PATTERNS = tuple(
    (re.compile(pattern), size, grows)
    for sizes, grows in ((_WIDTHS, True), (_COUNTS, False))
    for pattern, size in sizes
)
_TOKEN = re.compile(r"\w*(token_id|token_index|_idx)$")
_SPECIAL = {"pad": 0, "bos": 1, "eos": 2, "decoder_start": 3, "unk": 4, "mask": 5, "sep": 6}
IMAGE_TOKEN = 7


def shrink(config: Any, scale: int = 1) -> Any:
    """Make a configuration small, in place; widths are `scale` times the smallest."""
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            shrink(value, scale)
        elif name.startswith("_"):
            continue
        else:
            small = _small(name, value, scale)
            if small is not value:
                _set(config, name, small)
    _settle(config)
    return config


def widen_vocabulary(config: Any, tokens: int) -> None:
    """Give a shrunk configuration, and those in it, a vocabulary of this many tokens."""
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            widen_vocabulary(value, tokens)
        elif "vocab_size" in name and value == VOCABULARY:
            _set(config, name, tokens)


def _small(name: str, value: Any, scale: int) -> Any:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, float):
        return 0.0 if "drop" in name else value
    if isinstance(value, int):
        return 0 if "drop" in name else _small_number(name, value, scale)
    if isinstance(value, (list, tuple)) and value and all(type(item) is int for item in value):
        return type(value)(_small_list(name, list(value), scale))
    return value


def _small_number(name: str, value: int, scale: int) -> int:
    if _TOKEN.match(name):
        return _token(name, value)
    for pattern, size, grows in _PATTERNS:
        if pattern.match(name):
            return min(value, size * scale if grows else size) if value > 0 else value
    return value


def _token(name: str, value: int) -> int:
    if value < VOCABULARY - 1:
        return value
    for kind, number in _SPECIAL.items():
        if name.startswith(kind):
            return number
    return IMAGE_TOKEN if "image" in name else 8 + sum(map(ord, name)) % 40


def _small_list(name: str, values: list[int], scale: int) -> list[int]:
    if re.search(r"depths|layers|num_blocks", name):
        return [1 for _ in values]
    if re.search(r"heads", name):
        return [min(value, HEADS) for value in values]
    if re.search(r"(hidden_sizes|embed_dims?|out_channels|dims|channels)$", name):
        return [min(value, 16 * scale * (1 + position)) for position, value in enumerate(values)]
    if re.search(r"(image|input)_size", name):
        return [IMAGE for _ in values]
    if re.search(r"conv_dim", name):
        return [WIDTH * scale for _ in values]
    return values


def _settle(config: Any) -> None:
    """Lists that have an entry for each layer, and sections of rotary embeddings."""
    layers = getattr(config, "num_hidden_layers", None)
    kinds = getattr(config, "layer_types", None)
    if isinstance(kinds, list) and isinstance(layers, int):
        _set(config, "layer_types", _first_of_each(kinds, layers))
    rope = getattr(config, "rope_scaling", None)
    if isinstance(rope, dict) and "mrope_section" in rope:
        rope["mrope_section"] = [2, 1, 1]
    mlp = getattr(config, "mlp_layer_types", None)
    if isinstance(mlp, list) and isinstance(layers, int):
        _set(config, "mlp_layer_types", _first_of_each(mlp, layers))


def _first_of_each(kinds: list[Any], count: int) -> list[Any]:
    """As many entries as layers, including every kind if there is room."""
    chosen = list(dict.fromkeys(kinds))[:count]
    return chosen + [chosen[-1]] * (count - len(chosen))


def _set(config: Any, name: str, value: Any) -> None:
    try:
        setattr(config, name, value)
    except (AttributeError, NotImplementedError, TypeError, ValueError):
        return  # a property without a setter, computed from others
