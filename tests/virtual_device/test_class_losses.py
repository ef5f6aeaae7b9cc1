"""Class indices of each type, as `cross_entropy` takes or refuses them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import graphmem


def trains(target: torch.Tensor, *shape: int) -> bool:
    """Whether a loss and its gradient are computed, where the target is."""
    scores = torch.zeros(shape, device=target.device, requires_grad=True)
    try:
        F.cross_entropy(scores, target).backward()
    except RuntimeError as error:
        return "Long" not in str(error)
    return scores.grad is not None


@pytest.mark.parametrize("shape", [(4, 5), (2, 5, 3, 3)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_a_card_takes_the_types_that_the_cpu_takes(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    """`nll_loss` bytes and longs, `nll_loss2d` longs (Loss.cu, NLLLoss2d.cu, and LossNLL*.cpp)."""
    target = torch.zeros((shape[0], *shape[2:]), dtype=dtype)
    with graphmem.virtual_gpu("a100"):
        on_card = trains(target.cuda(), *shape)

    assert on_card == trains(target, *shape)
