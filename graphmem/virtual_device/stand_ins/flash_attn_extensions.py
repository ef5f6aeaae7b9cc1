"""flash-attn's extensions `dropout_layer_norm`, `rotary_emb` and `xentropy_cuda_lib`.

(1) `dropout_layer_norm` (csrc/layer_norm/ln_api.cpp of 2.8.3) adds a residual and normalises.
    Forwards it allocates the sum, unless that is its input, the mask of dropout, the result, and
    mean and deviation of each row in float32; backwards gradients, and in float32 a row of the
    weight's and the bias's gradients for each block of threads that runs at once, all returned.
    How many run depends on the kernel's registers: at least as many as with all that a thread can
    have, which is assumed (ln_bwd_kernels.cuh; blocks have 4 warps, from a width of 6,144 on 8).
(2) `rotary_emb` (csrc/rotary, until 2.8.2) writes into what it is given.
(3) `xentropy_cuda_lib` (csrc/xentropy, until 2.8.2) returns losses and log-sum-exps in float32, the
    latter made first; the gradient lies in the logits if it is asked to.

Not covered: two norms of one sum (`…parallel_residual…`), and `fused_dense_lib`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from graphmem.gpus import Gpu
from graphmem.virtual_device.stand_ins import lacking

_MOST_REGISTERS, _REGISTERS = 256, 65_536  # of a thread, as they are given; of a multiprocessor
_WARP = 32
_WIDE = 6144

SOURCE = (
    "dropout_layer_norm: csrc/layer_norm/ln_api.cpp, the least partial sums of its gradients: how "
    "many there are depends on registers"
)


def _norm(
    x0: torch.Tensor,
    residual: torch.Tensor | None,
    gamma: torch.Tensor,
    beta: Any,
    rowscale: Any,
    colscale: Any,
    x0_subset: torch.Tensor | None,
    z_subset: torch.Tensor | None,
    dropout_p: float,
    epsilon: float,
    rowscale_const: float,
    z_numrows: int,
    generator: Any,
    residual_in_fp32: bool = False,
    is_rms_norm: bool = False,
) -> list[torch.Tensor | None]:
    """`dropout_add_ln_fwd`."""
    rows, width = x0.shape[0] if x0_subset is None else x0_subset.shape[0], x0.shape[1]
    wide = torch.float32 if residual_in_fp32 else x0.dtype
    dtype = wide if residual is None else residual.dtype
    given = (residual, rowscale, colscale, x0_subset)
    is_kept = dropout_p > 0 or dtype != x0.dtype or any(each is not None for each in given)
    summed = x0.new_empty((rows, width), dtype=dtype) if is_kept else None
    mask = x0.new_empty(x0.shape, dtype=torch.uint8) if dropout_p > 0 else None
    normed = x0.new_empty((rows if z_subset is None else z_numrows, width))
    mean, deviation = (x0.new_empty(rows, dtype=torch.float32) for _ in range(2))
    return [normed, summed, mask, mean, deviation]


def _norm_backward(
    processors: int,
    dz: torch.Tensor,
    dx: Any,
    x: torch.Tensor,
    x0: Any,
    mask: Any,
    mean: Any,
    deviation: Any,
    gamma: torch.Tensor,
    rowscale: Any,
    colscale: torch.Tensor | None,
    x0_subset: Any,
    z_subset: Any,
    dropout_p: float,
    rowscale_const: float,
    x0_numrows: int,
    has_residual: bool,
    is_rms_norm: bool = False,
) -> list[torch.Tensor | None]:
    """`dropout_add_ln_bwd`."""
    rows, width = x.shape
    of_input = x.new_empty((rows if x0_subset is None else x0_numrows, width), dtype=dz.dtype)
    of_residual = torch.empty_like(x) if has_residual else None
    of_affine = [torch.empty_like(gamma) for _ in range(2)]
    of_columns = [] if colscale is None else [torch.empty_like(colscale)]
    threads = _WARP * (8 if width >= _WIDE else 4)
    blocks = processors * (_REGISTERS // (_MOST_REGISTERS * threads))
    many = 2 + len(of_columns)
    parts = [x.new_empty((blocks, width), dtype=torch.float32) for _ in range(many)]
    return [of_input, of_residual, *of_affine, *parts[:2], *of_columns, *parts[2:]]


def _nothing(*args: Any) -> None:
    """Clause (2)."""


def _losses(
    logits: torch.Tensor, labels: torch.Tensor, smoothing: float, total_classes: int = -1
) -> list[torch.Tensor]:
    """`softmax_xentropy_forward`."""
    sums, losses = (torch.empty_like(labels, dtype=torch.float32) for _ in range(2))
    return [losses, sums]


def _gradient(
    grad_loss: Any,
    logits: torch.Tensor,
    sums: Any,
    labels: Any,
    smoothing: float,
    inplace: bool,
    total_classes: int = -1,
) -> torch.Tensor:
    """`softmax_xentropy_backward`."""
    return logits if inplace else torch.empty_like(logits)


NAMES = frozenset({"dropout_layer_norm", "rotary_emb", "xentropy_cuda_lib"})


def extensions(gpu: Gpu) -> Mapping[str, Mapping[str, Any]]:
    """Their functions, by the names of the modules."""
    both = [f"dropout_add_ln_parallel_residual_{each}" for each in ("fwd", "bwd")]
    return {
        "dropout_layer_norm": {
            "dropout_add_ln_fwd": _norm,
            "dropout_add_ln_bwd": partial(_norm_backward, gpu.multiprocessors),
            **lacking("flash_attn", both),
        },
        "rotary_emb": {"apply_rotary": _nothing},
        "xentropy_cuda_lib": {"forward": _losses, "backward": _gradient},
    }
