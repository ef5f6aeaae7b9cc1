"""The types of class indices that `nll_loss` takes on a card, and with it `cross_entropy`.

CUDA's kernels take bytes and longs (aten/src/ATen/native/cuda/Loss.cu,
`AT_DISPATCH_NLL_LOSS_INDEX_TYPES`), those of images longs alone (cuda/NLLLoss2d.cu, `data_ptr`).
For fake tensors PyTorch has a decomposition (torch/_decomp/decompositions.py, `_nll_loss_forward`),
whose `gather` takes ints and longs. What is refused has the words of 2.13 in each release.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

aten = torch.ops.aten

_OF_IMAGES = frozenset({aten.nll_loss2d_forward.default, aten.nll_loss2d_backward.default})
_FORWARD = frozenset({aten.nll_loss_forward.default, aten.nll_loss2d_forward.default})
LOSSES = _OF_IMAGES | _FORWARD | {aten.nll_loss_backward.default}


def with_longs(func: Any, args: Sequence[Any]) -> Sequence[Any]:
    """The arguments of a loss in `LOSSES`, with the indices that its decomposition takes.

    Raises:
        RuntimeError: the kernel takes no indices of this type.
    """
    place = 1 if func in _FORWARD else 2
    target = args[place]
    if target.dtype == torch.int64:
        return args
    kind = target.type().rpartition(".")[2].removesuffix("Tensor")
    if target.numel() and target.dtype != torch.uint8:
        raise RuntimeError(f"expected target dtype to be Long or Byte, but got {kind}")
    if target.numel() and func in _OF_IMAGES:
        raise RuntimeError(f"expected scalar type Long but found {kind}")
    return *args[:place], target.new_empty(target.shape, dtype=torch.int64), *args[place + 1 :]
