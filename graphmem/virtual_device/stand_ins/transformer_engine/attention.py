"""Attention by cuDNN (csrc/extensions/attention.cpp, common/fused_attn/).

(1) `get_fused_attn_backend`: which calls cuDNN takes (`nvte_get_fused_attn_backend` of
    common/fused_attn/fused_attn.cpp), for cuDNN 9.19.
(2) The forward pass makes the output, the random state, a workspace, and a float32 number for each
    row of each head (`fused_attn_arbitrary_seqlen_fwd`).
(3) The backward pass makes the gradients, in one buffer if queries, keys and values are in one, and
    a workspace.
(4) The workspaces are cuDNN's, as recorded of PyTorch's calls of it
    (passes/kernels/cudnn_attention.py), and with padding two lengths for each sequence.

Not covered: packed sequences (THD), FP8, paged keys, and context parallelism.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from graphmem.virtual_device.stand_ins.transformer_engine.card import architecture, refuse
from graphmem.virtual_device.stand_ins.transformer_engine.names import (
    AttentionBackend,
    BiasType,
    DType,
    MaskType,
    QKVFormat,
    QKVLayout,
    SoftmaxType,
)

_FLOAT_BYTES = 4
_PLAN_BYTES = 256
_HALF = (int(DType.kFloat16), int(DType.kBFloat16))
_PADDED = tuple(each for each in MaskType if "PADDING" in each.name)
_BOTTOM_RIGHT = tuple(each for each in MaskType if "BOTTOM_RIGHT" in each.name)
_CAUSAL, _NO_MASK = MaskType["NVTE_CAUSAL_MASK"], MaskType["NVTE_NO_MASK"]
_NO_BIAS, _ALIBI = BiasType["NVTE_NO_BIAS"], BiasType["NVTE_ALIBI"]
_POST_SCALE = BiasType["NVTE_POST_SCALE_BIAS"]
_ASKED = (
    *("is_training", "qkv_dtype", "kv_dtype", "qkv_layout", "bias_type", "attn_mask_type"),
    *("softmax_type", "dropout", "num_attn_heads", "num_gqa_groups", "max_seqlen_q"),
    *("max_seqlen_kv", "head_dim_qk", "head_dim_v", "window_size_left", "window_size_right"),
    *("return_max_logit", "cuda_graph", "deterministic"),
)
_ORDERS = {"SBHD": "sbhd", "BSHD": "bshd", "BHSD": "bhsd"}


def get_fused_attn_backend(*given: Any) -> Any:
    """Clause (1): the kernel and why it is none; of 2.19, which names no reason, the kernel."""
    if len(given) > 1:
        return _backend(SimpleNamespace(**dict(zip(_ASKED, given, strict=True))))
    backend = _backend(given[0])
    is_none = backend == AttentionBackend["NVTE_No_Backend"]
    return backend, "cuDNN does not take this attention" if is_none else ""


def _backend(params: Any) -> Any:
    if int(params.qkv_dtype) in (int(DType.kFloat8E4M3), int(DType.kFloat8E5M2)):
        refuse("attention in FP8")
    checks = (_fits_card, _fits_bias, _fits_mask, _fits_window)
    is_taken = int(params.qkv_dtype) in _HALF and all(fits(params) for fits in checks)
    name = "NVTE_F16_arbitrary_seqlen" if is_taken else "NVTE_No_Backend"
    return AttentionBackend[name]


def fused_attn_fwd(
    max_seqlen_q: int,
    max_seqlen_kv: int,
    is_training: bool,
    attn_scale: float,
    p_dropout: float,
    set_zero: bool,
    qkv_layout: Any,
    o_format: Any,
    qkv_scale_inv_format: Any,
    bias_type: Any,
    attn_mask_type: Any,
    softmax_type: Any,
    window_size: Any,
    bottom_right_diagonal: bool,
    cu_seqlens_q: Any,
    cu_seqlens_kv: Any,
    q: Any,
    k: Any,
    v: Any,
    fake_dtype: torch.dtype,
    *options: Any,
) -> list[Any]:
    """Clause (2)."""
    _, _, _, _, _, o_quantizer, bias, offset, _, _, returns_max, _ = options
    _require_plain(qkv_layout, q, o_quantizer)
    order = _query_order(qkv_layout)
    sizes = dict(zip(order, q.shape, strict=True)) | {"d": v.shape[-1]}
    new = q.new_empty
    output = new([sizes[each] for each in _ORDERS[_format_name(o_format)]], dtype=fake_dtype)
    state = new((2,), dtype=torch.int64)
    batch = cu_seqlens_q.numel() - 1
    workspace = new((_PLAN_BYTES + _lengths(attn_mask_type, batch),), dtype=torch.uint8)
    rows = (batch, sizes["h"], max_seqlen_q, 1)
    made = [output, new(rows, dtype=torch.float32)]
    if returns_max:
        made.append(new(rows, dtype=torch.float32))
    made.append(state)
    if bias is not None and bias_type not in (_NO_BIAS, _ALIBI):
        made.append(bias)
    if offset is not None and softmax_type != SoftmaxType["NVTE_VANILLA_SOFTMAX"]:
        made.append(offset)
    del workspace
    return made


def fused_attn_bwd(
    max_seqlen_q: int,
    max_seqlen_kv: int,
    attn_scale: float,
    p_dropout: float,
    set_zero: bool,
    qkv_layout: Any,
    o_format: Any,
    do_format: Any,
    dqkv_layout: Any,
    qkv_scale_inv_format: Any,
    do_scale_inv_format: Any,
    bias_type: Any,
    attn_mask_type: Any,
    softmax_type: Any,
    window_size: Any,
    bottom_right_diagonal: bool,
    deterministic: bool,
    cu_seqlens_q: Any,
    cu_seqlens_kv: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    dout: Any,
    fake_dtype: torch.dtype,
    saved: Any,
    *options: Any,
) -> list[Any]:
    """Clause (3)."""
    _require_plain(qkv_layout, q, options[4])
    if _query_order(dqkv_layout) != _query_order(qkv_layout):
        refuse("fused_attn_bwd that changes the order of dimensions")
    gradients = _gradients(QKVLayout(int(dqkv_layout)).name, q, k, v, fake_dtype)
    heads = q.shape[_query_order(qkv_layout).index("h")]
    of_bias = of_offset = None
    if bias_type not in (_NO_BIAS, _ALIBI):
        of_bias = q.new_empty(saved[-1].shape, dtype=fake_dtype)
    if softmax_type != SoftmaxType["NVTE_VANILLA_SOFTMAX"]:
        of_offset = q.new_empty((1, heads, 1, 1), dtype=torch.float32)
    batch = cu_seqlens_q.numel() - 1
    nbytes = _backward_bytes(q, k, v, _query_order(qkv_layout), _key_order(qkv_layout))
    workspace = q.new_empty((nbytes + _lengths(attn_mask_type, batch),), dtype=torch.uint8)
    del workspace
    return [*gradients, of_bias, of_offset]


def _gradients(layout: str, q: Any, k: Any, v: Any, dtype: torch.dtype) -> list[torch.Tensor]:
    """Clause (3): `NVTE_QKV_Layout_Group`."""
    first, *others = layout.removeprefix("NVTE_").split("_")
    in_one = {"3": (q, 3), "2": (k, 2)}
    named = first if not others else others[0]
    count = next((each for each in named if each in in_one), None)
    if count is None:
        return [each.new_empty(each.shape, dtype=dtype) for each in (q, k, v)]
    like, parts = in_one[count]
    at = like.dim() - (1 if named.endswith(f"{count}D") else 2)
    own = [] if parts == 3 else [q.new_empty(q.shape, dtype=dtype)]
    shape = (*like.shape[:at], parts, *like.shape[at:])
    buffer = like.new_empty(shape, dtype=dtype)
    return [*own, *(buffer.select(at, part) for part in range(parts))]


def _backward_bytes(q: Any, k: Any, v: Any, order: str, key_order: str) -> int:
    """Clause (4): `cudnn_backward`."""
    queries = dict(zip(order, q.shape, strict=True))
    keys = dict(zip(key_order, k.shape, strict=True))
    rows = queries["b"] * queries["h"] * queries["s"] * _FLOAT_BYTES
    nbytes: int = rows * queries["d"] + rows + _PLAN_BYTES
    if queries["h"] != keys["h"]:
        width = keys["d"] + v.shape[-1]
        nbytes += queries["b"] * queries["h"] * keys["s"] * width * k.element_size()
    return -(-nbytes // 16) * 16


def _lengths(mask: Any, batch: int) -> int:
    """Clause (4): `actual_seqlen_workspace_size`."""
    return 2 * (-(-batch * _FLOAT_BYTES // 16) * 16) if mask in _PADDED else 0


def _require_plain(layout: Any, q: Any, quantizer: Any) -> None:
    name = QKVLayout(int(layout)).name.removeprefix("NVTE_")
    if name.startswith("Paged"):
        refuse("fused_attn_fwd with paged keys")
    if any(part.startswith("T") for part in name.split("_")):
        refuse("fused attention of packed sequences (THD)")
    if quantizer is not None or not isinstance(q, torch.Tensor):
        refuse("attention in FP8")


def _query_order(layout: Any) -> str:
    """The dimensions of queries, of `sbhd`: SB3HD and SBH3D are SBHD with others in between."""
    first = QKVLayout(int(layout)).name.removeprefix("NVTE_").split("_")[0]
    return first.replace("3", "").lower()


def _key_order(layout: Any) -> str:
    parts = QKVLayout(int(layout)).name.removeprefix("NVTE_").split("_")
    return parts[min(1, len(parts) - 1)].replace("3", "").replace("2", "").lower()


def _format_name(order: Any) -> str:
    return QKVFormat(int(order)).name.removeprefix("NVTE_")


def _fits_card(params: Any) -> bool:
    """Card and heads: 256 wide on Hopper alone; 192 and 128 for training on Blackwell."""
    widths = params.head_dim_qk, params.head_dim_v
    if architecture() < 80 or any(each % 8 for each in widths):
        return False
    if max(widths) <= 128:
        return architecture() != 90 or not _is_broken_on_hopper(params)
    if not params.is_training:
        return bool(params.max_seqlen_q > 1)
    if architecture() == 90 and max(widths) <= 256:
        return not _is_broken_on_hopper(params)
    return architecture() >= 100 and widths == (192, 128)


def _is_broken_on_hopper(params: Any) -> bool:
    """`9.11+ bug` in the source."""
    keys, values = params.head_dim_qk, params.head_dim_v
    return bool(params.is_training and min(keys, values) >= 128 and keys != values)


def _fits_bias(params: Any) -> bool:
    bias, mask = params.bias_type, params.attn_mask_type
    if bias == _ALIBI:
        return architecture() >= 90 and mask != _NO_MASK and mask not in _PADDED
    if bias == _POST_SCALE:
        return mask not in _PADDED or mask in _BOTTOM_RIGHT
    return bool(bias == _NO_BIAS)


def _fits_mask(params: Any) -> bool:
    mask = params.attn_mask_type
    if mask in (_NO_MASK, _CAUSAL):
        return True
    is_simple = params.bias_type == _NO_BIAS and not params.dropout
    if mask in _PADDED and is_simple:
        return True
    if mask in _BOTTOM_RIGHT:
        return bool(params.max_seqlen_q <= params.max_seqlen_kv)
    return mask in _PADDED  # with bias or dropout: 8.9.6, {bshd, sbhd}


def _fits_window(params: Any) -> bool:
    left, right = params.window_size_left, params.window_size_right
    if left == -1 and right in (-1, 0):
        return True
    is_simple = params.bias_type == _NO_BIAS and not params.dropout
    return bool(is_simple and params.max_seqlen_q <= params.max_seqlen_kv)
