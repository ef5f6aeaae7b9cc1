"""Kernels of the card that `torch.use_deterministic_algorithms(True)` refuses.

They call `alertNotDeterministic` (aten/src/ATen/Context.cpp) with a name of theirs; those below are
of torch 2.13.0, which ran all operators of PyTorch's own database on a pretended card
(docs/exactness.md), or of its libtorch_cuda.so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

aten = torch.ops.aten

_ALWAYS = {
    aten._adaptive_avg_pool2d_backward.default: "adaptive_avg_pool2d_backward_cuda",
    aten._adaptive_avg_pool3d_backward.default: "adaptive_avg_pool3d_backward_cuda",
    aten._ctc_loss_backward.default: "ctc_loss_backward_gpu",
    aten._ctc_loss_backward.Tensor: "ctc_loss_backward_gpu",
    aten._upsample_bicubic2d_aa_backward.default: "upsample_bicubic2d_aa_backward_out_cuda",
    aten._upsample_bilinear2d_aa_backward.default: "upsample_bilinear2d_aa_backward_out_cuda",
    aten.adaptive_max_pool2d_backward.default: "adaptive_max_pool2d_backward_cuda",
    aten.avg_pool3d_backward.default: "avg_pool3d_backward_cuda",
    aten.fractional_max_pool2d_backward.default: "fractional_max_pool2d_backward_cuda",
    aten.fractional_max_pool3d_backward.default: "fractional_max_pool3d_backward_cuda",
    aten.grid_sampler_2d_backward.default: "grid_sampler_2d_backward_cuda",
    aten.grid_sampler_3d_backward.default: "grid_sampler_3d_backward_cuda",
    aten.index_reduce.default: "index_reduce_cuda",
    aten.index_reduce_.default: "index_reduce_cuda",
    aten.max_pool3d_with_indices_backward.default: "max_pool3d_with_indices_backward_cuda",
    aten.max_unpool2d.default: "max_unpooling2d_forward_out",
    aten.max_unpool3d.default: "max_unpooling3d_forward_out",
    aten.median.dim: "median CUDA with indices output",
    aten.nanmedian.dim: "median CUDA with indices output",
    aten.nll_loss2d_backward.default: "nll_loss2d_backward_out_cuda_template",
    aten.nll_loss2d_forward.default: "nll_loss2d_forward_out_cuda_template",
    aten.put.default: "put_",
    aten.put_.default: "put_",
    aten.reflection_pad1d_backward.default: "reflection_pad1d_backward_out_cuda",
    aten.reflection_pad3d_backward.default: "reflection_pad3d_backward_out_cuda",
    aten.upsample_bicubic2d_backward.default: "upsample_bicubic2d_backward_out_cuda",
    aten.upsample_bilinear2d_backward.default: "upsample_bilinear2d_backward_out_cuda",
    aten.upsample_linear1d_backward.default: "upsample_linear1d_backward_out_cuda",
    aten.upsample_trilinear3d_backward.default: "upsample_trilinear3d_backward_out_cuda",
}


_MAXIMUM = 2  # `EmbeddingBagMode`


def _of_bincount(values: Any, weights: Any = None, *rest: Any) -> str:
    return "" if weights is None else "_bincount_cuda"


def _of_bags(*args: Any) -> str:
    return "embedding_bag_backward_cuda_max" if args[8] == _MAXIMUM else ""


def _of_histc(values: torch.Tensor, *rest: Any) -> str:
    return "_histc_cuda with floating point input" if values.is_floating_point() else ""


def _of_scatter(values: Any, dim: int, index: Any, source: Any, reduce: str, *rest: Any) -> str:
    return "scatter_reduce_cuda_prod_" if reduce == "prod" else ""


_SOMETIMES: dict[Any, Callable[..., str]] = {
    aten._embedding_bag_backward.default: _of_bags,
    aten.bincount.default: _of_bincount,
    aten.histc.default: _of_histc,
    aten.scatter_reduce.two: _of_scatter,
    aten.scatter_reduce_.two: _of_scatter,
}

REFUSED = (*_ALWAYS, *_SOMETIMES)
"""What may be refused."""


@contextmanager
def unasked() -> Iterator[None]:
    """Let fake kernels give results whatever the program asks: some refuse what a card does not.

    `meta_median_mode_dim` does (torch/_meta_registrations.py), of which a card refuses one half.
    """
    if not torch.are_deterministic_algorithms_enabled():
        yield
        return
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch._C._set_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(True, warn_only=only_warns)


def check_determinism(func: Any, args: Sequence[Any]) -> None:
    """Refuse an operation whose results may differ from run to run.

    Raises:
        RuntimeError: the card has no deterministic kernel for it, and a warning is not enough.
    """
    if torch.is_deterministic_algorithms_warn_only_enabled():
        return
    if not (isinstance(args[0], torch.Tensor) and args[0].is_cuda):
        return
    name = _ALWAYS.get(func) or _SOMETIMES[func](*args)
    if name:
        raise RuntimeError(
            f"{name} does not have a deterministic implementation, but you set "
            "'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for "
            "this operation, or you can use the 'warn_only=True' option, if that's acceptable for "
            "your application. You can also file an issue at "
            "https://github.com/pytorch/pytorch/issues to help us prioritize adding deterministic "
            "support for this operation."
        )
