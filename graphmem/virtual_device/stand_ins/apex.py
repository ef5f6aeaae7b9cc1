"""Apex's extensions `amp_C` and `fused_layer_norm_cuda`, under its own Python.

Its setup.py needs a CUDA compiler, its Python part none: a checkout on Python's path will do.
Read from NVIDIA/apex 6424da3 (2026-07-08).

(1) `amp_C` updates tensors in place; lists of addresses travel in a kernel's arguments
    (csrc/multi_tensor_apply.cuh), so most of its functions allocate nothing.
(2) A norm takes a buffer of 320 sums, and, of every tensor, one of its chunks of `chunk_size`
    elements each, as many as the largest has (csrc/multi_tensor_l2norm_kernel.cu). LAMB takes two
    (csrc/multi_tensor_lamb.cu), NovoGrad one (csrc/multi_tensor_novograd.cu).
(3) A norm layer returns its output and one statistic, or two, of each row in float32; its backward
    pass sums gradients of weight and bias from 16 parts. The output has the input's type, which the
    weight must have too, or in `*_mixed_dtypes` the weight's (csrc/layer_norm_cuda.cpp,
    csrc/layer_norm_cuda_kernel.cu).

Not covered: Apex's other extensions (`apex.contrib`, `syncbn`, `mlp_cuda`, softmax), and
`apex.amp`, which it no longer has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any

import torch

from graphmem.gpus import Gpu
from graphmem.virtual_device.stand_ins import StandIn, lacking

_INSTALL = "git clone https://github.com/NVIDIA/apex; export PYTHONPATH=$PWD/apex"
_SUMS = 320
_PARTS = 16
_IN_PLACE = (
    "multi_tensor_scale multi_tensor_sgd multi_tensor_axpby multi_tensor_lamb_stage1_cuda "
    "multi_tensor_lamb_stage2_cuda multi_tensor_adam multi_tensor_adam_capturable "
    "multi_tensor_adam_capturable_master multi_tensor_adagrad"
).split()
_OPTIMIZERS = "FusedSGD FusedAdam FusedNovoGrad FusedLAMB FusedAdagrad FusedMixedPrecisionLamb"
_NORMS = "FusedLayerNorm MixedFusedLayerNorm FusedRMSNorm MixedFusedRMSNorm"


def _nothing(*args: Any) -> None:
    """Clause (1)."""


def _norm(chunk_size: int, noop: Any, lists: Any, *rest: Any) -> tuple[Any, Any]:
    """Clause (2): the norm of all tensors, and that of each if the last argument says so."""
    tensors = lists[0]
    new = partial(torch.zeros, dtype=torch.float32, device=tensors[0].device)
    sums = new(_SUMS)
    partial_sums, each = None, new(0)
    if rest and rest[-1]:
        chunks = max(-(-tensor.numel() // chunk_size) for tensor in tensors)
        partial_sums, each = new(len(tensors) * chunks), new(len(tensors))
    total = new(1)
    del partial_sums, sums
    return total, each


def _lamb(chunk_size: int, noop: Any, lists: Any, *rest: Any) -> None:
    """Clause (2): norms of parameters, then of updates, until the step is done."""
    of_parameters = _norm(chunk_size, noop, lists[1:2], True)
    of_updates = _norm(chunk_size, noop, lists[:1], True)
    del of_updates, of_parameters


def _novograd(chunk_size: int, noop: Any, lists: Any, *rest: Any) -> None:
    """Clause (2): `multi_tensor_norm_out_cuda`, which writes each norm into its argument."""
    new = partial(torch.zeros, dtype=torch.float32, device=lists[0][0].device)
    chunks = max(-(-tensor.numel() // chunk_size) for tensor in lists[0])
    held = [new(size) for size in (_SUMS, len(lists[0]) * chunks, 1)]
    del held


def _forward(is_mixed: bool, statistics: int, data: Any, shape: Any, *affine: Any) -> list[Any]:
    """Clause (3); `affine` is weight, bias and epsilon, as far as there are any."""
    weights = affine[:-1]
    if not is_mixed:
        _require_dtype(data, weights)
    rows = data.numel() // prod(shape)
    dtype = torch.float32 if data.dtype in (torch.float16, torch.bfloat16) else data.dtype
    out = torch.empty_like(data, dtype=weights[0].dtype if is_mixed else data.dtype)
    return [out, *(data.new_empty(rows, dtype=dtype) for _ in range(statistics))]


def _require_dtype(data: Any, weights: Any) -> None:
    """`gamma->data_ptr<scalar_t_out>()`, where the output has the input's type."""
    for weight in weights:
        if weight.dtype != data.dtype:
            wanted, found = (_scalar_type(each) for each in (data, weight))
            raise RuntimeError(f"expected scalar type {wanted} but found {found}")


def _scalar_type(tensor: Any) -> str:
    """PyTorch's name of a type in C++: of `torch.cuda.BFloat16Tensor`, BFloat16."""
    return str(tensor.type().rpartition(".")[2].removesuffix("Tensor"))


def _backward(statistics: int, gradient: Any, *args: Any) -> Any:
    """Clause (3); the arguments are those of `layer_norm_gradient_affine` and its like."""
    data, shape, *weights = args[statistics:-2]
    made = [torch.empty_like(each) for each in (data, *weights)]
    if not weights:
        return made[0]
    dtype = torch.float32 if data.dtype in (torch.float16, torch.bfloat16) else data.dtype
    parts = [data.new_empty((_PARTS, prod(shape)), dtype=dtype) for _ in weights]
    del parts
    return made


def _amp() -> dict[str, Callable[..., Any]]:
    norms = ("l2norm", "l2norm_mp", "l2norm_scale", "unscale_l2norm")
    return {
        **dict.fromkeys(_IN_PLACE, _nothing),
        **{f"multi_tensor_{name}": _norm for name in norms},
        "multi_tensor_lamb": _lamb,
        "multi_tensor_lamb_mp": _lamb,
        "multi_tensor_novograd": _novograd,
        "update_scale_hysteresis": lambda scale, *rest: scale,  # csrc/update_scale_hysteresis.cu
    }


def _layer_norm() -> dict[str, Callable[..., Any]]:
    kinds = {"": 2, "rms_": 1}  # mean and inverse deviation, or the latter alone
    forward = {
        f"{kind}forward{affine}": partial(_forward, affine.endswith("mixed_dtypes"), statistics)
        for kind, statistics in kinds.items()
        for affine in ("", "_affine", "_affine_mixed_dtypes")
    }
    backward = {
        f"{kind}backward{affine}": partial(_backward, statistics)
        for kind, statistics in kinds.items()
        for affine in ("", "_affine")
    }
    return {**forward, **backward}


def _modules(gpu: Gpu) -> Mapping[str, Mapping[str, Any]]:
    optimizers = lacking("apex", _OPTIMIZERS.split(), _INSTALL)
    norms = lacking("apex", _NORMS.split(), _INSTALL)
    applier = lacking("apex", ["multi_tensor_applier"], _INSTALL)
    return {
        "amp_C": _amp(),
        "fused_layer_norm_cuda": _layer_norm(),
        "apex": {"__version__": STAND_IN.version},
        "apex.optimizers": optimizers,
        "apex.normalization": norms,
        "apex.multi_tensor_apply": applier,
    }


STAND_IN = StandIn(
    distribution="apex",
    version="0.1",
    source="NVIDIA/apex 6424da3, csrc/amp_C_frontend.cpp and csrc/layer_norm_cuda.cpp",
    modules=_modules,
    gone=frozenset({"apex.amp", "apex.fp16_utils", "apex.parallel", "apex.RNN"}),  # cb65b8ed
)
