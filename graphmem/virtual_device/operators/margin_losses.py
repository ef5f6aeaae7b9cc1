"""`multi_margin_loss` and `multilabel_margin_loss`.

aten/src/ATen/native/cuda/MultiMarginLoss.cu, MultiLabelMarginCriterion.cu.
"""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten

_NO_REDUCTION = 0  # at::Reduction


def _multi_margin(
    tensor: torch.Tensor,
    target: torch.Tensor,
    p: float = 1,
    margin: float = 1,
    weight: torch.Tensor | None = None,
    reduction: int = 1,
) -> torch.Tensor:
    return tensor.new_empty(target.shape if reduction == _NO_REDUCTION else ())


def _multilabel_margin(
    tensor: torch.Tensor, target: torch.Tensor, reduction: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and a flag per label: whether it is a target."""
    loss = tensor.new_empty(target.shape[:-1] if reduction == _NO_REDUCTION else ())
    return loss, tensor.new_empty(target.shape)


def _backward(grad: torch.Tensor, tensor: torch.Tensor, *_: Any) -> torch.Tensor:
    return tensor.new_empty(tensor.shape)


KERNELS = {
    aten.multi_margin_loss.default: _multi_margin,
    aten.multi_margin_loss_backward.default: _backward,
    aten.multilabel_margin_loss_forward.default: _multilabel_margin,
    aten.multilabel_margin_loss_backward.default: _backward,
}
