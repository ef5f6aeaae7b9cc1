"""When memory that iterations keep is called a leak."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import graphmem
from graphmem.report.schema import GROWTH


@pytest.mark.parametrize("is_emptied", [True, False])
def test_a_list_that_is_emptied_after_an_epoch_does_not_leak(is_emptied: bool) -> None:
    with graphmem.virtual_gpu("a100") as gpu:
        model = nn.Linear(256, 256, device="cuda")
        optimizer = torch.optim.SGD(model.parameters())
        outputs: list[torch.Tensor] = []
        for iteration in range(10):
            output = model(torch.ones(64, 256, device="cuda"))
            output.sum().backward()
            optimizer.step()
            outputs.append(output.detach())
            if is_emptied and iteration == 7:
                outputs.clear()
    report = gpu.report()
    assert report.ran is not None
    assert report.ran.grows_by == (0 if is_emptied else 64 * 256 * 4)
    assert any(each.found_by == GROWTH for each in report.findings) is not is_emptied


def test_a_leak_of_every_fifth_iteration_says_so() -> None:
    """A validation that keeps its output: a card of 16 GiB lasts five times as long."""
    every, each = 5, 2048 * 256 * 4
    with graphmem.virtual_gpu("t4") as gpu:
        model = nn.Linear(256, 256, device="cuda")
        optimizer = torch.optim.SGD(model.parameters())
        scores: list[torch.Tensor] = []
        for iteration in range(4 * every + 1):
            model(torch.ones(64, 256, device="cuda")).sum().backward()
            optimizer.step()
            if iteration % every == 0:
                scores.append(model(torch.ones(2048, 256, device="cuda")).detach())
    report = gpu.report()
    assert report.ran is not None
    assert report.ran.grows_by == round(each / every)
    (leak, *_) = (line for it in report.findings if it.found_by == GROWTH for line in it.lines)
    assert leak.startswith(f"2.0 MiB ({each:,} bytes) more every 5 iterations, ")
    assert " so far: held by `scores` " in leak


def test_a_leak_of_one_of_two_optimizers_is_found() -> None:
    """Each of a GAN's optimizers has iterations of its own, and only one of them leaks."""
    with graphmem.virtual_gpu("t4") as gpu:
        nets = [nn.Linear(256, 256, device="cuda") for _ in range(2)]
        optimizers = [torch.optim.SGD(net.parameters()) for net in nets]
        outputs: list[list[torch.Tensor]] = [[], []]
        for _ in range(8):
            for net, optimizer, kept in zip(nets, optimizers, outputs, strict=True):
                output = net(torch.ones(64, 256, device="cuda"))
                output.sum().backward()
                optimizer.step()
                if net is nets[0]:
                    kept.append(output.detach())
    found = [line for it in gpu.report().findings if it.found_by == GROWTH for line in it.lines]
    assert any("more every 2 iterations" in line and "`outputs`" in line for line in found)


def failed(output: torch.Tensor) -> BaseException:
    """An error whose traceback holds the function's variables."""

    def check(values: torch.Tensor) -> None:
        raise FloatingPointError(values.shape)

    try:
        check(output.detach())
    except FloatingPointError as error:
        return error
    raise AssertionError


def scores(output: torch.Tensor) -> Iterator[torch.Tensor]:
    values = output.detach()
    while True:
        yield values.sum()


def started(output: torch.Tensor) -> Iterator[torch.Tensor]:
    generator = scores(output)
    next(generator)
    return generator


@pytest.mark.parametrize(
    "keep",
    [
        failed,
        started,
        lambda output: lambda: output + 1,
        lambda output: functools.partial(torch.add, output.detach()),
        lambda output: functools.partial(torch.add, other=output.detach()),
        lambda output: torch.distributions.Categorical(logits=output.detach(), validate_args=False),
    ],
    ids=["exception", "generator", "closure", "partial", "keyword", "distribution"],
)
def test_a_tensor_is_held_by_the_list_of_what_keeps_it(
    keep: Callable[[torch.Tensor], object],
) -> None:
    found = leaks_with(keep)

    assert found
    assert all("held by `kept` (tests/live/test_leaks.py:" in leak for leak in found)


def leaks_with(keep: Callable[[torch.Tensor], object]) -> list[str]:
    kept: list[object] = []
    with graphmem.virtual_gpu("t4") as gpu:
        model = nn.Linear(256, 256, device="cuda")
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(8):
            output = model(torch.ones(64, 256, device="cuda"))
            output.sum().backward()
            optimizer.step()
            kept.append(keep(output))
    return [it.lines[0] for it in gpu.report().findings if it.found_by == GROWTH]


@pytest.mark.parametrize("most", [None, 4])
def test_the_cache_of_a_function_leaks_unless_it_is_bounded(most: int | None) -> None:
    @functools.lru_cache(maxsize=most)
    def positions(_: int) -> torch.Tensor:
        return torch.zeros(64, 256, device="cuda")

    numbers = itertools.count()
    found = leaks_with(lambda _: positions(next(numbers)).shape)
    assert len(found) == (most is None)
    assert all("held by `positions`" in leak for leak in found)
