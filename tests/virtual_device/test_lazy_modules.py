"""Lazy modules: their parameters lie on the card before they have a shape."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from graphmem import TrainingStep, analyze, virtual_gpu
from tests.support.sizes import CUBLAS_WORKSPACE

ROWS, WIDTH, HIDDEN = 8, 64, 256


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(HIDDEN), nn.LazyBatchNorm1d())


def test_a_lazy_module_takes_its_memory_in_the_first_forward_pass() -> None:
    with virtual_gpu("t4"):
        net = lazy().half().cuda()
        net[0] = copy.deepcopy(net[0])
        weight = net[0].weight
        assert weight.device == torch.device("cuda", 0)
        with pytest.raises(RuntimeError, match="uninitialized parameter"):
            _ = weight.shape
        assert torch.cuda.memory_allocated() == 512  # the batches counted by the norm
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        net(torch.ones(ROWS, WIDTH, dtype=torch.half, device="cuda")).sum().backward()

        assert optimizer.param_groups[0]["params"][0] is weight is net[0].weight
        assert isinstance(weight, nn.Parameter)
        assert (weight.dtype, weight.shape) == (torch.half, (HIDDEN, WIDTH))
        assert weight.grad.shape == weight.shape
        optimizer.zero_grad()
        vectors = 512 + 5 * HIDDEN * 2  # the counter, the bias and four of the norm
        workspaces = 2 * CUBLAS_WORKSPACE  # in two threads
        assert torch.cuda.memory_allocated() == HIDDEN * WIDTH * 2 + vectors + workspaces


def test_a_lazy_module_of_the_caller_stays_lazy() -> None:
    net = lazy()
    with virtual_gpu("t4"):
        net.cuda()(torch.ones(ROWS, WIDTH, device="cuda"))
    assert is_lazy(net[0].weight)
    assert net(torch.ones(ROWS, WIDTH)).shape == (ROWS, HIDDEN)


def test_a_lazy_module_trains_as_the_module_that_it_becomes() -> None:
    def peak(net: nn.Module) -> int:
        step = TrainingStep(net, torch.ones(ROWS, WIDTH), torch.sum)
        return analyze(lambda: step, gpu="t4", steps=2).peak.allocated

    assert peak(lazy()) == peak(nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.BatchNorm1d(HIDDEN)))
