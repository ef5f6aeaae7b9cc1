"""Data-parallel layouts compared with printed figures and with PyTorch's own DDP and FSDP."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from graphmem import TrainingStep
from graphmem.analysis import Request
from graphmem.parallel.layout import Layout, Sharding
from graphmem.parallel.planner import Planner
from graphmem.parallel.sharding.buckets import first_buckets, rebuilt_buckets
from graphmem.parallel.sharding.fsdp import share_rows
from graphmem.parallel.tracing import planner_for
from tests.support.sizes import LT_WORKSPACE, MIB

NO_WORKSPACE = {"CUBLAS_WORKSPACE_CONFIG": ":0:0"}


def planner(
    build: Callable[[], TrainingStep], *, steps: int, wrap: tuple[str, ...] = ()
) -> Planner:
    request = Request(gpu="v100-32gb", steps=steps, env=NO_WORKSPACE)
    return planner_for(build, request, wrap=wrap)[1]


# ZeroRedundancyOptimizer recipe ------------------------------------------------------------------


def zero_recipe() -> TrainingStep:
    """20 layers of 2000 x 2000, batch 20, Adam of a PyTorch that had no foreach implementation.

    docs/sources.md, "Printed figures". PyTorch did not allocate cuBLAS workspaces yet.
    """
    return TrainingStep(
        model=nn.Sequential(*(nn.Linear(2000, 2000) for _ in range(20))),
        inputs=(torch.randn(20, 2000),),
        loss=lambda output: nn.functional.mse_loss(output, torch.randn(20, 2000, device="cuda")),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01, foreach=False),
    )


def test_the_zero_redundancy_recipe_to_the_printed_digit() -> None:
    """335 MB after the model, 992 before the step, 1697 after it with DDP, 1361 with ZeRO."""
    made = planner(zero_recipe, steps=1)

    ddp = made.plan(Layout(data=2))[0].timeline
    zero = made.plan(Layout(data=2, sharding=Sharding.ZERO_1))[0].timeline
    setup, _, before_step, _ = ddp.after

    used = (before_step, ddp.peak, zero.peak)
    assert setup // 10**6 == 335
    assert [(nbytes - LT_WORKSPACE) // 10**6 for nbytes in used] == [992, 1697, 1361]


# PyTorch's FSDP memory test ----------------------------------------------------------------------


class ConvNet(nn.Module):
    """The model of test/distributed/fsdp/test_fsdp_memory.py, as the catalogue describes it."""

    def __init__(self, width: int, checkpointed: bool) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(inplace=True))
        layers: list[nn.Module] = []
        for inner in (64, width, width):
            layers += [nn.Conv2d(inner, width, 5, padding=2), nn.BatchNorm2d(width)]
            layers += [nn.ReLU(inplace=True)]
        self.blocks = nn.Sequential(*layers, nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten())
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        blocks = self.blocks
        x = checkpoint(blocks, x, use_reentrant=True) if self.checkpointed else blocks(x)
        x = self.head(x)
        return x


def conv_net(checkpointed: bool) -> TrainingStep:
    return TrainingStep(
        model=ConvNet(128, checkpointed),
        inputs=(torch.randn(2, 3, 224, 224),),
        loss=lambda output: output.square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-4, momentum=0.9),
    )


BATCH_MIB = 2 * 3 * 224 * 224 * 4 / MIB
"""The test keeps its batch on the device throughout; a graphmem step moves it in each forward."""


@pytest.mark.parametrize(("checkpointed", "after_forward"), [(False, 340), (True, 51)])
def test_pytorchs_fsdp_memory_test(checkpointed: bool, after_forward: int) -> None:
    """What PyTorch's test expects for each of two ranks, within its tolerance of 1 MiB.

    A model of 4 MiB in shards of 2: start 2 + 1, after backward 2 x 2 + 1, done 2 x 2 + 1, and
    after the forward pass the printed figure; from the second iteration on momentum adds 2.
    """
    made = planner(lambda: conv_net(checkpointed), steps=2, wrap=("stem", "blocks", "head"))

    found = made.plan(Layout(data=2, sharding=Sharding.FSDP))[0].timeline.after

    setup = found[0] / MIB
    used = ((n - LT_WORKSPACE) / MIB for n in found[1:])
    forward, backward, done, forward_2, backward_2, done_2 = used
    assert setup + BATCH_MIB == pytest.approx(2 + 1, abs=1)
    assert forward == pytest.approx(after_forward, abs=1)
    assert backward + BATCH_MIB == pytest.approx(2 * 2 + 1, abs=1)
    assert done + BATCH_MIB == pytest.approx(2 * 2 + 1, abs=1)
    assert forward_2 == pytest.approx(after_forward + 2, abs=1)
    assert backward_2 + BATCH_MIB == pytest.approx(3 * 2 + 1, abs=1)
    assert done_2 + BATCH_MIB == pytest.approx(2 * 2 + 1, abs=1)


def test_fairscales_ddp_row() -> None:
    """One of two DDP ranks: after forward, backward, done: 346, 14, 13; then 350, 17, 13."""
    made = planner(lambda: conv_net(False), steps=2)

    found = made.plan(Layout(data=2))[0].timeline.after

    used = ((n - LT_WORKSPACE) / MIB for n in found[1:])
    forward, backward, done, forward_2, backward_2, done_2 = used
    assert [round(forward), round(forward_2)] == [346, 350]
    rest = (backward, done, backward_2, done_2)
    assert [round(n + BATCH_MIB) for n in rest] == [14, 13, 17, 13]


# PyTorch itself ----------------------------------------------------------------------------------


@contextmanager
def one_process(backend: str, world_size: int) -> Iterator[None]:
    excepthook = sys.excepthook  # a process group sets its own and leaves it
    if backend == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=0, world_size=world_size, store=FakeStore())
    else:
        store = dist.HashStore()
        dist.init_process_group(backend, rank=0, world_size=world_size, store=store)
    try:
        yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = excepthook


def test_buckets_are_those_of_a_real_ddp() -> None:
    """Sizes that cross 1 MiB and 25 MiB, in the order in which gradients become ready."""
    widths = (700, 2900, 2700, 1200, 64)
    layers = [nn.Linear(a, b) for a, b in pairwise(widths)]
    with one_process("gloo", 1):
        model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
        for _ in range(3):
            model(torch.randn(2, widths[0])).sum().backward()
        log = model._get_ddp_logging_data()

    def sizes(text: Any) -> list[int]:
        return [int(each) for each in str(text).split(", ")]

    ready = [parameter for layer in reversed(layers) for parameter in (layer.bias, layer.weight)]
    found = [("float32", parameter.numel() * 4) for parameter in ready]

    assert sizes(log["bucket_sizes"]) == first_buckets(found)
    assert sizes(log["rebuilt_bucket_sizes"]) == rebuilt_buckets(found)
    assert len(rebuilt_buckets(found)) == 3


@pytest.mark.parametrize("shape", [(7, 5), (8, 3), (2, 9), (1,), (30,)])
def test_shards_are_those_of_a_real_fully_shard(shape: tuple[int, ...]) -> None:
    """Each rank's shard is padded to the size of the first."""
    from torch.distributed.fsdp import fully_shard

    ranks = 4
    module = nn.Module()
    module.weight = nn.Parameter(torch.zeros(shape))
    with one_process("fake", ranks):
        mesh = dist.device_mesh.init_device_mesh("cpu", (ranks,))
        fully_shard(module, mesh=mesh)
        state = fully_shard.state(module)  # type: ignore[attr-defined]
        (parameter,) = state._fsdp_param_group.fsdp_params
        padded = parameter.padded_sharded_param_size.numel()

    assert padded == share_rows(shape, ranks)


class WithHead(nn.Module):
    """Two blocks, a root with a stem and a head, and a loss in the model or outside."""

    def __init__(self, *, loss_within: bool) -> None:
        super().__init__()
        self.stem = nn.Linear(256, 256, bias=False)
        self.blocks = nn.ModuleList(nn.Linear(256, 256, bias=False) for _ in range(2))
        self.head = nn.Linear(256, 8192, bias=False)
        self.loss_within = loss_within

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return _loss_of(logits) if self.loss_within else logits


def _loss_of(logits: torch.Tensor) -> torch.Tensor:
    return -logits.log_softmax(-1).mean()  # its peak is in the backward pass


@pytest.mark.parametrize("loss_within", [True, False])
def test_the_roots_backward_pass_prefetches_the_last_block(loss_within: bool) -> None:
    """`FSDPState._pre_backward` runs on the gradient of what the root returns (_fsdp_state.py).

    So the last block's flat buffer is there at the peak, in the loss's backward pass, if the loss
    is the root's; else it comes later.
    """

    def build() -> TrainingStep:
        model = WithHead(loss_within=loss_within)
        loss = None if loss_within else _loss_of
        return TrainingStep(model=model, inputs=(torch.randn(1024, 256),), loss=loss)

    found = planner(build, steps=2).plan(Layout(data=4, sharding=Sharding.FSDP))[0].timeline

    root, block = (8192 + 256) * 256 * 4, 256 * 256 * 4
    backward_of_step_1 = 5  # setup, forward, backward, optimizer, forward, backward
    assert found.at[0] == backward_of_step_1
    shards = (root + 2 * block) // 4
    assert found.at_peak["parameter"] == shards + root
    assert found.at_peak.get("communication", 0) == block * loss_within
