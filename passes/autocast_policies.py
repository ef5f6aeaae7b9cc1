"""The dtype that CUDA autocast chooses for each operator, from the lists in the installed torch.

PyTorch registers its policies from lists in a header, `ATen/autocast_mode.h`, which every wheel
carries (`AT_FORALL_…`, torch 2.13); those that it registers one by one are named here:
  (1) `binary_cross_entropy` is an error under autocast (aten/src/ATen/autocast_mode.cpp);
  (2) cuDNN's convolutions run in lower precision (aten/src/ATen/autocast_mode.cpp, CUDA's list);
  (3) `linalg_matrix_sqrth`, from torch 2.15 on, runs in float32 (so it does on the CPU, too);
  (4) `norm` is given float32 by an argument (`AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE`).

The dispatch mode of a trace runs below autocast, so it sees the calls that an operator makes:
`_softmax` for `softmax`. `_PARTS` maps such a call back to its operator.
"""

from __future__ import annotations

import enum
import re
from functools import cache
from pathlib import Path

import torch

from graphmem.errors import InputError

_HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
_LIST = re.compile(r"#define AT_FORALL_(\w+)\(_\)((?:.*\\\n)*.*)")
_OPERATOR = re.compile(r"_\(\s*(?:ADD_NS\()?(\w+)")


class NoHeaderError(InputError):
    """PyTorch's headers were removed, as from a container to make it smaller."""

    def __init__(self, header: Path) -> None:
        super().__init__(
            f"the installed torch lacks {header}, which lists what autocast casts",
            hint="install torch again: its wheel has the file",
        )


class Policy(enum.StrEnum):
    """How autocast treats the floating-point arguments of an operator."""

    LOWER_PRECISION = "lower precision"
    """Cast to the region's dtype, float16 or bfloat16."""
    FP32 = "float32"
    """Cast to float32, or computed in it by an argument."""
    WIDEST = "widest of its inputs"
    NONE = "none"
    """Left unchanged."""


_LISTS = {
    "LOWER_PRECISION_FP": Policy.LOWER_PRECISION,
    "FP32": Policy.FP32,
    "FP32_SET_OPT_DTYPE": Policy.FP32,
    "DIFFERENT_REDISPATCH_SIGNATURE": Policy.FP32,
    "PROMOTE": Policy.WIDEST,
}
_ONE_BY_ONE = {
    "cudnn_convolution": Policy.LOWER_PRECISION,
    "cudnn_convolution_transpose": Policy.LOWER_PRECISION,
    "linalg_matrix_sqrth": Policy.FP32,
}
_PARTS = {
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
    "native_group_norm": "group_norm",
    "_fused_rms_norm": "rms_norm",
    "nll_loss_forward": "nll_loss",
    "nll_loss2d_forward": "nll_loss2d",
    "multilabel_margin_loss_forward": "multilabel_margin_loss",
    "_prelu_kernel": "prelu",
    "_cdist_forward": "cdist",
    "_pdist_forward": "pdist",
    "grid_sampler_2d": "grid_sampler",
    "grid_sampler_3d": "grid_sampler",
    "_trilinear": "bilinear",
    "linalg_cross": "cross",
    "_index_put_impl_": "index_put",
    "_scaled_dot_product_efficient_attention": "scaled_dot_product_attention",
    "_scaled_dot_product_cudnn_attention": "scaled_dot_product_attention",
}


@cache
def policies() -> dict[str, Policy]:
    """The policy of every operator that has one, by its name without an overload.

    Raises:
        NoHeaderError: the installed torch has no headers.
    """
    try:
        text = _HEADER.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NoHeaderError(_HEADER) from None
    found = {name: policy for name, policy in _ONE_BY_ONE.items() if hasattr(torch.ops.aten, name)}
    for name, body in _LIST.findall(text):
        if name in _LISTS:
            found.update(dict.fromkeys(_OPERATOR.findall(body), _LISTS[name]))
    return found


def policy_of(target: str) -> Policy | None:
    """The policy of an operation such as `aten.addmm.default`; None where the lists are silent."""
    name = target.removeprefix("aten.").partition(".")[0]
    return policies().get(_PARTS.get(name, name))
