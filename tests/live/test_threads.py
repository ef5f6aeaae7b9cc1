"""Operations in a program's own threads are traced like those of its main thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

import graphmem
from graphmem.errors import InputError
from tests.support.sizes import CUBLAS_WORKSPACE, LT_WORKSPACE

WIDTH, BATCH = 64, 128
OLD_POOL = ThreadPoolExecutor(1)
OLD_POOL.submit(int).result()  # its thread exists before any trace


def in_a_thread(work: Callable[[], None]) -> None:
    """Run a function in a new thread."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def in_a_pool(work: Callable[[], None]) -> None:
    """Run a function in a new pool."""
    with ThreadPoolExecutor(2) as pool:
        pool.submit(work).result()


def in_an_old_pool(work: Callable[[], None]) -> None:
    """Run a function in a thread that existed before the trace."""
    OLD_POOL.submit(work).result()


def build(run: Callable[[Callable[[], None]], None], what: str) -> graphmem.TrainingStep:
    """A step that runs partly in another thread."""
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(), nn.Linear(WIDTH, WIDTH))
    net.cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(BATCH, WIDTH, device="cuda")
    kept: list[torch.Tensor] = []

    def forward() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            kept.append(net(x).float().square().mean())

    def both() -> None:
        forward()
        kept.pop().backward()

    def step() -> None:
        run({"forward": forward, "both": both}[what])
        if kept:
            kept.pop().backward()
        optimizer.step()
        optimizer.zero_grad()

    return graphmem.TrainingStep(model=net, step=step)


def figures(run: Any, what: str) -> Any:
    """The report's figures on memory, operations and modules."""
    report = graphmem.analyze(lambda: build(run, what), steps=2)
    phases = [(p.name, p.start, p.peak, p.end) for step in report.steps for p in step.phases]
    holders = [(holder.module, holder.bytes, holder.reason) for holder in report.at_peak.holders]
    return report.peak.allocated, report.operations, phases, holders, report.assumptions


@pytest.mark.parametrize("what", ["forward", "both"])
@pytest.mark.parametrize("run", [in_a_thread, in_a_pool, in_an_old_pool])
def test_a_step_takes_the_same_in_a_thread(run: Any, what: str) -> None:
    assert figures(run, what) == figures(lambda work: work(), what)


@pytest.mark.parametrize("run", [in_a_thread, in_an_old_pool])
def test_a_step_takes_the_same_in_a_thread_on_a_virtual_gpu(run: Any) -> None:
    found = []
    for way in (run, lambda work: work()):
        with graphmem.virtual_gpu() as gpu:
            step: Any = build(way, "forward").step
            step()
            step()
            found.append((gpu.peak, gpu.allocated))
            del step
    assert found[0] == found[1]


@pytest.mark.parametrize("run", [in_a_thread, in_a_pool, in_an_old_pool])
def test_numbers_are_put_on_the_card_in_a_thread(run: Any) -> None:
    made: list[torch.Tensor] = []
    with graphmem.virtual_gpu() as gpu:
        run(lambda: made.append(torch.tensor([1, 2], device="cuda")))
        assert made[0].tolist() == [1, 2]
        assert gpu.allocated == 512


def test_a_forward_pass_in_a_thread_keeps_what_backward_needs() -> None:
    """The example of the finding: Linear, ReLU, Linear of 1024, batch 4096."""
    net = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024))
    with graphmem.virtual_gpu() as gpu:
        net.cuda()
        x = torch.randn(4096, 1024, device="cuda")
        out: list[torch.Tensor] = []
        before = gpu.allocated
        in_a_thread(lambda: out.append(net(x)))
        # the output of the ReLU and the last output; cuBLAS's workspace
        workspaces = CUBLAS_WORKSPACE + LT_WORKSPACE
        assert gpu.allocated - before == 2 * 4096 * 1024 * 4 + workspaces


def test_threads_side_by_side_are_seen_one_operation_at_a_time() -> None:
    net = nn.Linear(WIDTH, WIDTH)

    def build() -> graphmem.TrainingStep:
        def train(x: torch.Tensor) -> None:
            for _ in range(5):
                torch.autograd.grad(net(x).square().sum(), [net.weight])

        def step() -> None:
            net.cuda()
            inputs = [torch.randn(BATCH, WIDTH, device="cuda") for _ in range(4)]
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(train, inputs))

        return graphmem.TrainingStep(model=net, step=step)

    report = graphmem.analyze(build, steps=1)
    alone = graphmem.analyze(lambda: (net, torch.randn(BATCH, WIDTH)), steps=1)
    assert report.operations > 20 * 5
    assert report.peak.allocated >= alone.peak.allocated - 4 * WIDTH * WIDTH * 8
    assert net.weight.device.type == "cpu"


def test_a_thread_that_outlives_the_trace_computes_as_before() -> None:
    pools: list[ThreadPoolExecutor] = []

    def build() -> Any:
        pools.append(ThreadPoolExecutor(1))
        pools[0].submit(lambda: torch.ones(2, device="cuda") + 1).result()
        return nn.Linear(2, 2), torch.ones(1, 2)

    graphmem.analyze(build, steps=1)

    def gradient() -> list[float]:
        x = torch.ones(2, requires_grad=True)
        x.exp().sum().backward()
        assert x.grad is not None
        return x.grad.tolist()

    expected = torch.ones(2).exp().tolist()
    assert pools[0].submit(gradient).result() == expected
    pools[0].shutdown()


def test_an_analysis_from_a_thread_of_a_step_is_rejected() -> None:
    caught: list[str] = []

    def ask() -> None:
        try:
            graphmem.analyze(lambda: (nn.Linear(2, 2), torch.ones(1, 2)))
        except InputError as error:
            caught.append(str(error))

    def build() -> Any:
        in_a_thread(ask)
        return nn.Linear(2, 2), torch.ones(1, 2)

    graphmem.analyze(build, steps=1)
    assert caught == ["an analysis was requested inside an analysis or on a virtual GPU"]
