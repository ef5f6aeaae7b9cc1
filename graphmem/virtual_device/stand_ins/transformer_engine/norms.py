"""LayerNorm and RMSNorm (csrc/extensions/normalization.cpp).

(1) The forward pass makes statistics in float32, a number a row, and the output. Quantised by
    delayed scaling the kernel writes that; otherwise the output in high precision comes first.
(2) The backward pass makes the gradients of input, weight and bias, of input and weight.
(3) Each takes a workspace (`norm_plans`), of which the backward pass sums gradients.

Not covered: cuDNN's norms (NVTE_NORM_FWD_USE_CUDNN, NVTE_NORM_BWD_USE_CUDNN).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from math import prod
from typing import Any

import torch

from graphmem.virtual_device.stand_ins.transformer_engine.card import (
    architecture,
    processors,
    refuse,
)
from graphmem.virtual_device.stand_ins.transformer_engine.names import torch_dtype
from graphmem.virtual_device.stand_ins.transformer_engine.norm_plans import workspace_bytes
from graphmem.virtual_device.stand_ins.transformer_engine.quantizers import (
    DELAYED,
    create,
    fill_from_high_precision,
    kind_of,
    update,
)


def norms() -> dict[str, Callable[..., Any]]:
    """The extension's functions."""
    return {
        "layernorm_fwd": _layernorm,
        "layernorm_bwd": _layernorm_gradient,
        "rmsnorm_fwd": _rmsnorm,
        "rmsnorm_bwd": _rmsnorm_gradient,
        "rmsnorm_bwd_add": _rmsnorm_gradient_added,
    }


def _layernorm(
    data: Any,
    weight: Any,
    bias: Any,
    eps: float,
    ln_out: Any,
    quantizer: Any,
    otype: Any,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> tuple[Any, Any, Any]:
    mean = _statistic(data)
    inverse = _statistic(data)
    out = _normalised("layernorm", data, ln_out, quantizer, otype, sm_margin)
    return out, mean, inverse


def _rmsnorm(
    data: Any,
    weight: Any,
    eps: float,
    ln_out: Any,
    quantizer: Any,
    otype: Any,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> tuple[Any, Any, Any]:
    inverse = _statistic(data)
    out = _normalised("rmsnorm", data, ln_out, quantizer, otype, sm_margin)
    return out, None, inverse


def _layernorm_gradient(
    dz: Any, x: Any, mean: Any, inverse: Any, gamma: Any, sm_margin: int, is_zero_centered: bool
) -> list[Any]:
    dz, x, mean, inverse, gamma = (each.contiguous() for each in (dz, x, mean, inverse, gamma))
    made = [torch.empty_like(each) for each in (x, gamma, gamma)]
    _work("layernorm", "bwd", x, sm_margin)
    return made


def _rmsnorm_gradient(
    dz: Any, x: Any, inverse: Any, gamma: Any, sm_margin: int, is_zero_centered: bool
) -> list[Any]:
    dz, x, inverse, gamma = (each.contiguous() for each in (dz, x, inverse, gamma))
    made = [torch.empty_like(each) for each in (x, gamma)]
    _work("rmsnorm", "bwd", x, sm_margin)
    return made


def _rmsnorm_gradient_added(dz: Any, x: Any, add: Any, *others: Any) -> list[Any]:
    """The same, plus the gradient of another branch."""
    add = add.contiguous()
    return _rmsnorm_gradient(dz, x, *others)


def _statistic(data: torch.Tensor) -> torch.Tensor:
    return create(None, (prod(data.shape[:-1]),), torch.float32)  # type: ignore[no-any-return]


def _normalised(kind: str, data: Any, out: Any, quantizer: Any, otype: Any, sm_margin: int) -> Any:
    """Clause (1)."""
    dtype = torch_dtype(otype)
    if out is not None:
        out = out if quantizer is None else update(quantizer, out)
    else:
        out = create(quantizer, data.shape, dtype)
    if kind_of(quantizer) in (None, DELAYED):
        _work(kind, "fwd", data, sm_margin)
        return out

    def work(result: torch.Tensor) -> None:
        _work(kind, "fwd", data, sm_margin)

    fill_from_high_precision(quantizer, data.shape, dtype, work)
    return out


def _work(kind: str, stage: str, data: Any, sm_margin: int) -> None:
    """Clause (3)."""
    if os.environ.get(f"NVTE_NORM_{stage.upper()}_USE_CUDNN", "0") not in ("", "0"):
        refuse(f"cuDNN's {kind}")
    nbytes = workspace_bytes(kind, stage, data, processors() - sm_margin, architecture())
    workspace = torch.empty(nbytes, dtype=torch.uint8, device=data.device)
    del workspace
