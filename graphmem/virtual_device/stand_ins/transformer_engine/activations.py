"""Activations, their gradients, and gradients of biases (csrc/extensions/activation.cpp, bias.cpp).

(1) An activation makes its output, a gated one of half the width; a gradient the input's gradient.
(2) With current scaling, or in blocks of 128, the result is made in high precision first.
(3) `dbias_*` and `bgrad_quantize` make the gradient of a bias, one number a column; fused with the
    quantisation they take partial sums in float32 (`cast_transpose_fused` of
    common/transpose/cast_transpose_fusion.cu, `quantize_2D` of common/cast/fp8/quantize_fp8.cuh,
    common/cast/mxfp8/quantize_mxfp8.cuh).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import torch

from graphmem.virtual_device.stand_ins.transformer_engine.card import architecture, processors
from graphmem.virtual_device.stand_ins.transformer_engine.quantizers import (
    BLOCKS_OF_32,
    DELAYED,
    create,
    fill,
    fill_from_high_precision,
    kind_of,
)

_PLAIN = ("gelu", "qgelu", "relu", "srelu", "silu")
_GATED = ("glu", "geglu", "qgeglu", "reglu", "sreglu", "swiglu", "situglu")
_WARP = 32
_CACHE_LINE = 128
_WARPS_PER_PROCESSOR, _WARPS_PER_TILE = 16, 8
_OVERFLOW = 2**64
_SIZES = (
    *((8, 8), (4, 8), (8, 4), (4, 4), (2, 8), (8, 2), (2, 4), (4, 2)),
    *((2, 2), (1, 8), (8, 1), (1, 4), (4, 1), (1, 2), (2, 1), (1, 1)),
)


def activations() -> dict[str, Callable[..., Any]]:
    """The extension's functions."""
    gated = {name: partial(_activation, 2) for name in (*_GATED, "clamped_swiglu")}
    gradients = [f"d{name}" for name in (*_PLAIN, *_GATED)] + ["clamped_dswiglu"]
    return {
        **dict.fromkeys(_PLAIN, partial(_activation, 1)),
        **gated,
        **dict.fromkeys(gradients, _gradient),
        **{f"dbias_d{name}": _gradient_and_bias for name in _PLAIN},
        "bgrad_quantize": _quantize_and_bias,
    }


def _activation(parts: int, data: Any, quantizer: Any, *options: Any, **named: Any) -> Any:
    data = data.contiguous()
    return _made(quantizer, (*data.shape[:-1], data.shape[-1] // parts), data.dtype)


def _gradient(grad: Any, fwd_input: Any, quantizer: Any, *options: Any, **named: Any) -> Any:
    gradient, data = grad.contiguous(), fwd_input.contiguous()
    made = _made(quantizer, data.shape, data.dtype)
    del gradient
    return made


def _made(quantizer: Any, shape: Any, dtype: torch.dtype) -> Any:
    """Clauses (1) and (2)."""
    made = create(quantizer, shape, dtype)
    if kind_of(quantizer) not in (None, DELAYED, BLOCKS_OF_32):
        fill_from_high_precision(quantizer, shape, dtype)
    return made


def _gradient_and_bias(grad: Any, fwd_input: Any, quantizer: Any) -> list[Any]:
    """`dact_dbias`."""
    gradient, data = grad.contiguous(), fwd_input.contiguous()
    made = create(quantizer, data.shape, gradient.dtype)
    of_bias = create(None, data.shape[-1:], gradient.dtype)
    if not prod(gradient.shape):
        return [of_bias.zero_(), made]
    if kind_of(quantizer) in (DELAYED, BLOCKS_OF_32):
        partial_sums = _partial_sums(quantizer, data, is_activation=True)
        del partial_sums
    else:

        def sum_rows(whole: torch.Tensor) -> None:
            _sum_rows(whole, of_bias)

        fill_from_high_precision(quantizer, data.shape, gradient.dtype, sum_rows)
    return [of_bias, made]


def _quantize_and_bias(gradient: Any, quantizer: Any) -> list[Any]:
    """`bgrad_quantize`."""
    gradient = gradient.contiguous()
    width = gradient.shape[-1]
    of_bias = create(None, (width,), gradient.dtype)
    if quantizer is None:
        _sum_rows(gradient, of_bias)
        return [of_bias, gradient]
    made = create(quantizer, gradient.shape, gradient.dtype)
    if not prod(gradient.shape):
        return [of_bias.zero_(), made]
    if _fuses_bias(quantizer):
        partial_sums = _partial_sums(quantizer, gradient, is_activation=False)
        del partial_sums
    else:
        _sum_rows(gradient, of_bias)
        fill(quantizer)
    return [of_bias, made]


def _sum_rows(gradient: torch.Tensor, out: torch.Tensor) -> None:
    if gradient.numel():
        torch.sum(gradient.reshape(-1, gradient.shape[-1]), 0, out=out)
    else:
        out.zero_()


def _fuses_bias(quantizer: Any) -> bool:
    if kind_of(quantizer) == BLOCKS_OF_32:
        return True
    uses_both = quantizer.rowwise_usage and quantizer.columnwise_usage
    return kind_of(quantizer) == DELAYED and (architecture() >= 100 or uses_both)


def _partial_sums(quantizer: Any, data: torch.Tensor, is_activation: bool) -> torch.Tensor:
    """Clause (3): a row for each tile."""
    width = data.shape[-1]
    rows = data.numel() // width
    if kind_of(quantizer) == DELAYED and architecture() < 100:
        tile = _tile_rows(rows, width, data.element_size(), is_activation)
    else:
        tile = 64 if kind_of(quantizer) == BLOCKS_OF_32 and is_activation else 128
    return torch.empty((-(-rows // tile), width), dtype=torch.float32, device=data.device)


def _tile_rows(rows: int, width: int, item: int, is_activation: bool) -> int:
    """`KernelConfig`: the first of the sizes of loads and stores with the least cost."""
    largest = 4 if is_activation else 8
    if rows % _WARP or width % _WARP:
        return largest * _WARP
    best: tuple[int, list[int], int] | None = None
    for load, store in _SIZES:
        tile_width, tile = load * _WARP // item, store * _WARP
        if load % item or width % tile_width or rows % tile or max(load, store) > largest:
            continue
        blocks = (width // tile_width) * (rows // tile)
        active = min(-(-blocks * _WARPS_PER_TILE // _WARPS_PER_PROCESSOR), processors())
        loads = min(_CACHE_LINE, tile_width * item) // item
        lines = [loads, min(_CACHE_LINE, tile_width), min(_CACHE_LINE, tile)]
        lines += [loads] if is_activation else []
        if best is None or _costs_less((active, lines), best[:2]):
            best = active, lines, tile
    assert best is not None  # a warp's worth of rows and columns always fits
    return best[2]


def _costs_less(one: tuple[int, list[int]], other: tuple[int, list[int]]) -> bool:
    """`KernelConfig::operator<`, in unsigned numbers of 64 bits, which may overflow."""
    scale = prod((*one[1], one[0], *other[1], other[0])) % _OVERFLOW

    def cost(active: int, lines: list[int]) -> int:
        return sum(scale // each for each in lines) % _OVERFLOW // active

    return cost(*one) < cost(*other)
