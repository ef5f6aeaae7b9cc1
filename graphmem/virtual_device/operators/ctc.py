"""`ctc_loss` as a card runs it: by cuDNN if possible, else by PyTorch's own kernels.

When a dispatch mode is active the composite keeps lengths as tensors (`areAnyTensorSubclassLike`);
otherwise it copies them to the host. Here a kernel registered for `AutogradCUDA` does what
`ctc_loss_impl` does (aten/src/ATen/native/LossCTC.cpp), and calls the real operators.

Unknown lengths, those on the device, are assumed to be at their bound (`lengths.py`): the longest
input, and the width of the targets; for targets that are not padded, the longest input again,
since no alignment has more labels than steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from graphmem.virtual_device.operators.lengths import lengths_on_host

aten = torch.ops.aten

CTC_LOSSES = (aten.ctc_loss.IntList, aten.ctc_loss.Tensor)
"""The operators whose kernel is here."""

_MEAN, _SUM = 1, 2  # at::Reduction
_CUDNN_LONGEST_TARGET = 255

Lengths = torch.Tensor | Sequence[int]


def implement(library: torch.library.Library) -> None:
    """Register the composite."""
    for key in ("AutogradCUDA", "CUDA"):
        for loss in CTC_LOSSES:
            library.impl(loss, _ctc_loss, key)


def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    reduction: int = _MEAN,
    zero_infinity: bool = False,
) -> Any:
    is_batched = log_probs.dim() == 3
    if not is_batched:
        log_probs = log_probs.unsqueeze(1)
    inputs = lengths_on_host(input_lengths, log_probs.shape[0], "the lengths of ctc_loss's inputs")
    longest = targets.shape[-1] if targets.dim() > 1 else min(len(targets), len(log_probs))
    outputs = lengths_on_host(target_lengths, longest, "the lengths of ctc_loss's targets")
    lengths: list[Any] = [inputs, outputs]
    if _takes_cudnn(log_probs, targets, input_lengths, target_lengths, inputs, outputs, blank):
        if isinstance(input_lengths, torch.Tensor):
            lengths = [input_lengths, target_lengths]
        loss = aten._cudnn_ctc_loss(log_probs, targets, *lengths, blank, True, zero_infinity)[0]
    else:
        targets = targets.to(log_probs.device, torch.int64)
        loss = aten._ctc_loss(log_probs, targets, *lengths, blank, zero_infinity)[0]
        if zero_infinity:
            zero = torch.zeros((), **_options(loss))  # compilers evaluate the last argument first
            loss = torch.where(loss == math.inf, zero, loss)
            del zero
    if reduction == _MEAN:
        return (loss / _at_least_one(lengths[1], loss)).mean()
    if reduction == _SUM:
        return loss.sum()
    return loss if is_batched else loss.squeeze(0)


def _takes_cudnn(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    inputs: Sequence[int],
    outputs: Sequence[int],
    blank: int,
) -> bool:
    """`_use_cudnn_ctc_loss` and `_use_cudnn_ctc_loss_tensor` (cudnn/LossCTC.cpp).

    cuDNN needs contiguous 32-bit targets. With lists of lengths the targets are on the host and all
    inputs have the full length; with tensors the lengths are 32-bit as well.
    """
    kinds = {each.dtype for each in (input_lengths, target_lengths) if torch.is_tensor(each)}
    fits = (
        torch.backends.cudnn.enabled
        and blank == 0
        and targets.dim() == 1
        and targets.dtype == torch.int32
        and targets.is_contiguous()
        and log_probs.dtype == torch.float32
        and kinds <= {torch.int32}
        and all(n <= min(_CUDNN_LONGEST_TARGET, m) for n, m in zip(outputs, inputs, strict=True))
    )
    if kinds or not fits:
        return fits
    return targets.device.type == "cpu" and all(n == log_probs.shape[0] for n in inputs)


def _at_least_one(lengths: Lengths, loss: torch.Tensor) -> torch.Tensor:
    """`get_clamped_target_length`."""
    if not isinstance(lengths, torch.Tensor):
        lengths = torch.tensor(lengths, **_options(loss))
    return lengths.clamp_min(1)


def _options(like: torch.Tensor) -> dict[str, Any]:
    return {"dtype": like.dtype, "device": like.device}


def _native(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    *_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`ctc_loss_gpu_template` (cuda/LossCTC.cu): the loss of each sequence, and `log_alpha`."""
    steps, batch, _labels = log_probs.shape
    table = batch, steps, 2 * max(target_lengths, default=0) + 1
    return log_probs.new_empty(batch), log_probs.new_empty(table)


def _native_backward(grad: torch.Tensor, log_probs: torch.Tensor, *_: Any) -> torch.Tensor:
    """`ctc_loss_backward_gpu_template` (cuda/LossCTC.cu)."""
    return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


def _cudnn(log_probs: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of each sequence, and its gradient, which is computed along with it."""
    gradient = torch.empty_like(log_probs, memory_format=torch.contiguous_format)
    return log_probs.new_empty(log_probs.shape[1]), gradient


KERNELS = {
    aten._ctc_loss.default: _native,
    aten._ctc_loss_backward.default: _native_backward,
    aten._ctc_loss_backward.Tensor: _native_backward,
    aten._cudnn_ctc_loss.default: _cudnn,
    aten._cudnn_ctc_loss.Tensor: _cudnn,
}
