"""Memory that a program keeps from one iteration to the next."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import graphmem

ROWS, WIDTH = 4096, 256


def test_what_a_list_keeps_of_earlier_iterations_is_not_temporary() -> None:
    """The peak is in the fourth iteration, when the list holds the outputs of three others."""
    outputs: list[torch.Tensor] = []

    def loss(output: torch.Tensor) -> torch.Tensor:
        outputs.append(output.detach())
        return output.square().mean()

    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    report = graphmem.analyze(model, torch.randn(ROWS, WIDTH), loss=loss, steps=4)

    assert report.peak.step == 3
    assert report.at_peak.by_category["kept"] == 3 * ROWS * WIDTH * 4


def test_activations_that_await_their_backward_pass_are_not_kept() -> None:
    """The generator's, made before the critic's step, which ends an iteration of its own."""
    with graphmem.virtual_gpu("h100") as gpu:
        layers = (nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())
        generator = nn.Sequential(*layers).cuda()
        critic = nn.Linear(WIDTH, 1).cuda()
        optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (generator, critic)]
        for _ in range(3):
            noise = torch.randn(ROWS, WIDTH, device="cuda")
            fake = generator(noise)
            critic(fake.detach()).mean().backward()
            optimizers[1].step()
            critic(fake).mean().backward()
            optimizers[0].step()

    report = gpu.report()
    found = report.at_peak.by_category

    # After the last layer's backward pass the first one's await theirs: `noise` and a result of
    # tanh. Nothing but a variable holds `fake` by then.
    assert report.peak.phase == "backward"
    assert found["activation"] == 2 * ROWS * WIDTH * 4
    assert found["kept"] == ROWS * WIDTH * 4


@pytest.mark.parametrize("steps", [2, 3])
def test_what_was_made_before_the_first_iteration_and_lasts_is_kept_in_it(steps: int) -> None:
    """An average of the weights, but not the first batch, which is as old."""
    with graphmem.virtual_gpu("h100") as gpu:
        model = nn.Linear(WIDTH, WIDTH).cuda()
        average = [each.detach().clone() for each in model.parameters()]
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(steps):
            batch, other = (torch.randn(ROWS, WIDTH, device="cuda") for _ in "ab")
            model(batch).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        del other

    report = gpu.report()

    assert report.peak.step == 0
    assert report.at_peak.by_category["kept"] == 4 * sum(each.numel() for each in average)


def test_a_copy_made_after_an_iteration_that_lasts_is_kept_in_the_next_one() -> None:
    """The best weights, but not the next batch, which is as old. The peak is in every iteration."""
    with graphmem.virtual_gpu("h100") as gpu:
        model = nn.Linear(WIDTH, WIDTH).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        best = None
        for _ in range(4):
            batch = torch.randn(ROWS, WIDTH, device="cuda")
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()
            best = best or [each.detach().clone() for each in model.parameters()]
    report = gpu.report()

    assert report.peak.step == 1
    assert report.at_peak.by_category["kept"] == 4 * sum(each.numel() for each in best or ())
