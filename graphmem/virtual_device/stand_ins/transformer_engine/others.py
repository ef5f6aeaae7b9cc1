"""Softmax, rotary embeddings, dropout, optimizers and the rest (csrc/extensions/).

(1) softmax.cpp: the probabilities, and their gradient, like the input.
(2) apply_rope.cpp: an output like the input; of queries, keys and values in one, three.
(3) dropout.cpp: an output, a bit for each element, and a random state.
(4) multi_tensor/: updates in place; a norm takes a buffer of 320 sums, and for each tensor as many
    as the largest has chunks.
(5) cast.cpp, transpose.cpp, recipe.cpp: copies and scales.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from graphmem.virtual_device.stand_ins.transformer_engine.card import (
    CUBLASLT_VERSION,
    CUDNN_VERSION,
)
from graphmem.virtual_device.stand_ins.transformer_engine.names import torch_dtype
from graphmem.virtual_device.stand_ins.transformer_engine.parts import split_quantize
from graphmem.virtual_device.stand_ins.transformer_engine.quantizers import (
    create,
    fill,
    quantize,
    shape_of,
)

_SUMS = 320
_STREAMS = 4  # nvte_get_num_compute_streams, common/multi_stream.cpp
_SOFTMAXES = (
    *("scaled_softmax", "scaled_masked_softmax", "scaled_upper_triang_masked_softmax"),
    "scaled_aligned_causal_masked_softmax",
)
_IN_PLACE = (
    *("multi_tensor_adam", "multi_tensor_adam_param_remainder", "multi_tensor_adam_fp8"),
    *("multi_tensor_adam_capturable", "multi_tensor_adam_capturable_master", "multi_tensor_sgd"),
    *("multi_tensor_scale", "multi_tensor_scale_tensor"),
    *("multi_tensor_compute_scale_and_scale_inv", "multi_tensor_compute_scale_inv_e8m0"),
    "fused_amax_and_scale_update_after_reduction",
)


def others() -> dict[str, Callable[..., Any]]:
    """The extension's functions."""
    return {
        **{f"{name}_forward": _softmax for name in _SOFTMAXES},
        **{f"{name}_backward": _softmax_gradient for name in _SOFTMAXES},
        **dict.fromkeys(_IN_PLACE, _nothing),
        "multi_tensor_l2norm": _norm,
        "multi_tensor_unscale_l2norm": _unscaled_norm,
        "fused_rope_forward": _rotated,
        "fused_rope_backward": _rotated,
        "fused_qkv_rope_forward": _rotated_parts,
        "fused_qkv_rope_backward": _joined_gradients,
        "dropout_fwd": _dropout,
        "dropout_bwd": _dropout_gradient,
        "quantize": quantize,
        "dequantize": _dequantize,
        "multi_tensor_quantize": _quantize_all,
        "split_quantize": split_quantize,
        "create_empty_quantized_tensor": create,
        "fp8_transpose": _transpose,
        "swap_first_dims": _swap,
        "compute_amax": _largest,
        "fa_prepare_fwd": _prepare,
        "fa_prepare_bwd": _prepare_gradient,
        "get_cudnn_version": lambda: CUDNN_VERSION,
        "get_cublasLt_version": lambda: CUBLASLT_VERSION,
        "get_num_cublas_streams": lambda: _STREAMS,
    }


def _nothing(*args: Any, **named: Any) -> None:
    """Clause (4)."""


def _softmax(data: Any, *options: Any) -> torch.Tensor:
    """Clause (1)."""
    data = data.contiguous()
    return torch.empty(data.shape, dtype=data.dtype, device=data.device)


def _softmax_gradient(gradient: Any, probabilities: Any, scale: float) -> torch.Tensor:
    """Clause (1)."""
    gradient, probabilities = gradient.contiguous(), probabilities.contiguous()
    return torch.empty(gradient.shape, dtype=gradient.dtype, device=gradient.device)


def _rotated(data: Any, *options: Any) -> torch.Tensor:
    """Clause (2)."""
    return torch.empty(data.shape, dtype=data.dtype, device=data.device)


def _rotated_parts(
    data: Any, q_freqs: Any, k_freqs: Any, starts: Any, widths: Any, *options: Any
) -> tuple[torch.Tensor, ...]:
    """Clause (2)."""
    outer, heads = data.shape[:2], data.shape[2]
    queries = (heads * widths[0] // widths[1], widths[1])
    sizes = (queries, (heads, widths[1]), (heads, widths[2]))
    return tuple(data.new_empty((*outer, *size)) for size in sizes)


def _joined_gradients(
    q: Any, k: Any, v: Any, q_freqs: Any, k_freqs: Any, widths: Any, *options: Any
) -> torch.Tensor:
    """Clause (2)."""
    total = (q.shape[2] + k.shape[2] + v.shape[2]) * q.shape[3]
    made: torch.Tensor = q.new_empty((*q.shape[:2], total // sum(widths), sum(widths)))
    return made


def _dropout(data: Any, dropout_probability: float, out: Any = None) -> list[torch.Tensor]:
    """Clause (3)."""
    shape = shape_of(data)
    out = create(None, shape, data.dtype) if out is None else out
    mask = create(None, (out.numel() // 8,), torch.uint8)
    state = create(None, (2,), torch.int64)
    del state
    return [out, mask]


def _dropout_gradient(
    grad_output: Any, mask: Any, dropout_probability: float, grad_input: Any = None
) -> Any:
    """Clause (3)."""
    return torch.empty_like(grad_output) if grad_input is None else grad_input


def _norm(chunk: int, noop: Any, lists: Any, per_tensor: bool | None = None) -> tuple[Any, Any]:
    """Clause (4): `multi_tensor_l2norm_cuda`."""
    tensors = lists[0]

    def new(size: int) -> torch.Tensor:
        made: torch.Tensor = tensors[0].new_empty(size, dtype=torch.float32)
        return made

    sums = new(_SUMS)
    total = new(1)
    chunks = max(-(-tensor.numel() // chunk) for tensor in tensors) if per_tensor else 0
    partial_sums = new(len(tensors) * chunks)
    each = new(len(tensors) if per_tensor else 0)
    del partial_sums, sums
    return total, each


def _unscaled_norm(
    chunk: int, noop: Any, lists: Any, inverse_scale: Any, per_tensor: bool | None = None
) -> tuple[Any, Any]:
    """Clause (4); it allocates its total last, which is as much."""
    return _norm(chunk, noop, lists, per_tensor)


def _dequantize(data: Any, otype: Any) -> Any:
    """Clause (5)."""
    return create(None, shape_of(data), torch_dtype(otype))


def _quantize_all(tensor_list: Any, quantizer_list: Any) -> list[Any]:
    """Clause (5): all outputs come first."""
    pairs = zip(tensor_list, quantizer_list, strict=True)
    made = [create(quantizer, each.shape, each.dtype) for each, quantizer in pairs]
    for quantizer in quantizer_list:
        fill(quantizer)
    return made


def _transpose(data: Any, dtype: Any, *, out: Any = None) -> torch.Tensor:
    """Clause (5)."""
    if out is not None:
        return out  # type: ignore[no-any-return]
    shape = (*data.shape[-1:], *data.shape[:-1])
    return torch.empty(shape, dtype=torch.uint8, device="cuda")


def _swap(tensor: Any, *, out: Any = None) -> Any:
    """Clause (5)."""
    data = tensor.contiguous()
    shape = (data.shape[1], data.shape[0], *data.shape[2:])
    return data.new_empty(shape) if out is None else out


def _largest(data: Any, amax: Any) -> None:
    """Clause (5)."""
    data.contiguous()


def _prepare(qkv: Any) -> torch.Tensor:
    """attention.cpp: from one buffer, queries, keys and values with the batch first."""
    rows, batch, heads, width = qkv.shape
    made: torch.Tensor = qkv.new_empty((3, batch, rows, heads, width))
    return made


def _prepare_gradient(q: Any, k: Any, v: Any) -> torch.Tensor:
    """attention.cpp."""
    rows, batch, heads, width = q.shape
    made: torch.Tensor = q.new_empty((batch, rows, heads, 3 * width))
    return made
