"""What is freed when a model leaves the card."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import graphmem

WEIGHT, BIAS = 256 * 256 * 4, 256 * 4


@pytest.mark.parametrize("keeps_graph", [False, True])
def test_a_loss_that_is_held_does_not_hold_parameters_that_moved(keeps_graph: bool) -> None:
    """`AccumulateGrad` holds a parameter, whose memory is then the host's; so do saved ones."""
    with graphmem.virtual_gpu("a100") as gpu:
        model = nn.Linear(256, 256).cuda()
        alias = model.bias.detach()
        loss = model(torch.randn(64, 256, device="cuda")).square().mean()
        loss.backward(retain_graph=keeps_graph)
        trained = gpu.allocated
        model.cpu()
        assert trained - gpu.allocated == 2 * WEIGHT + BIAS
        del alias
        assert trained - gpu.allocated == 2 * (WEIGHT + BIAS)
        model.cuda()
        assert gpu.allocated == trained
        if keeps_graph:
            loss.backward()
            assert trained - gpu.allocated == 2 * 64 * 256 * 4  # its input and output, saved


def test_a_model_of_the_caller_is_restored_after_it_left_the_card_with_a_graph() -> None:
    model = nn.Linear(4, 4)
    weight = model.weight.detach().clone()
    with graphmem.virtual_gpu("a100"):
        loss = model.cuda()(torch.randn(2, 4, device="cuda")).sum()
        loss.backward()
        model.cpu()
        model.cuda()
    assert torch.equal(model.weight, weight)
    assert model.weight.grad is None


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_data_that_a_parameter_takes_has_versions_of_its_own(device: str) -> None:
    """As FSDP1 with offloaded parameters in bf16, which writes into its shard in each step."""
    with graphmem.virtual_gpu("a100"):
        parameter = nn.Parameter(torch.ones(4))
        shard = torch.ones(4, device=device)
        parameter.data = shard
        loss = parameter.square().sum()
        shard.add_(1)

        assert parameter._version == 0
        loss.backward()


def test_a_gradient_goes_when_the_parameter_that_moved_drops_it() -> None:
    """FSDP1 keeps the node that adds to a gradient, and under `no_sync` the gradient as well."""
    with graphmem.virtual_gpu("a100") as gpu:
        parameter = nn.Parameter(torch.ones(1024, device="cuda"))
        squares = parameter.square()
        node = squares.grad_fn.next_functions[0][0]  # type: ignore[union-attr]
        squares.sum().backward()
        del squares
        parameter.data = torch.ones(1024)
        assert gpu.allocated == 1024 * 4
        parameter.grad = None

        assert gpu.allocated == 0
        del node
