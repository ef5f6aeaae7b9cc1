"""Copies of tensors and models allocate what they do in a real run."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import graphmem
from graphmem import TrainingStep
from graphmem.trace import TraceOptions
from graphmem.virtual_device.messages import SaveInTraceError
from tests.support import oracle

WIDTH = 16


def deep_encoder() -> TrainingStep:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
    return TrainingStep(model, torch.randn(2, 4, WIDTH), optimizer=torch.optim.SGD)


def moving_average() -> TrainingStep:
    """An average of weights and batch statistics, taken after each update."""
    blocks = (nn.Sequential(nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3)) for _ in range(12))
    model = nn.Sequential(*blocks)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images = torch.randn(2, 3, 32, 32)

    def step() -> None:
        model(images).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)

    return TrainingStep(model=model, step=step)


def target_network() -> TrainingStep:
    """A new copy in each iteration, after the update."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(30)))
    states = torch.randn(4, WIDTH)

    def step() -> None:
        target = copy.deepcopy(model).eval()
        with torch.no_grad():
            wanted = target(states)
        (model(states) - wanted).square().mean().backward()

    return TrainingStep(model=model, step=step)


class Shared(nn.Module):
    """A parameter, and buffers that are views of one storage."""

    def __init__(self) -> None:
        super().__init__()
        table = torch.randn(4 * WIDTH)
        self.weight = nn.Parameter(torch.randn(2, WIDTH).t())
        self.register_buffer("even", table[::2])
        self.register_buffer("whole", table)
        self.register_buffer("first", table[:4].view(2, 2))

    def forward(self) -> Any:
        return self.weight.sum() + self.even.sum() + self.whole.sum() + self.first.sum()


def shared_buffers() -> TrainingStep:
    model = Shared()

    def step() -> None:
        copied = copy.deepcopy(model)
        copied().backward()
        again = copy.deepcopy([copied.even, copied.weight.grad, copied.first])
        (again[0].sum() + again[1].sum()).item()

    return TrainingStep(model=model, step=step)


@pytest.mark.parametrize("make", [deep_encoder, moving_average, target_network, shared_buffers])
def test_a_deep_copy_allocates_what_a_real_run_does(make: Callable[[], TrainingStep]) -> None:
    options = TraceOptions(steps=2, subclass_like=True)
    oracle.assert_agree(oracle.run(make, options), oracle.traced_events(make, options))


def test_a_deep_copy_on_the_card_is_one_new_storage_for_each_parameter() -> None:
    copies: list[nn.Module] = []

    def build() -> TrainingStep:
        model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(20))).cuda()
        step = lambda: copies.append(copy.deepcopy(model))  # noqa: E731
        return TrainingStep(model=model, step=step)

    report = graphmem.analyze(build, steps=1)
    weights = 20 * 256 * 256 * 4
    assert report.peak.allocated == 2 * weights


def test_a_copy_keeps_user_attributes_and_is_its_own_leaf() -> None:
    seen: dict[str, Any] = {}

    def build() -> TrainingStep:
        tensor = torch.ones(3, device="cuda", requires_grad=True)
        tensor.role = "anchor"  # type: ignore[attr-defined]
        (tensor * 2).sum().backward()
        copied = copy.deepcopy({"one": tensor, "same": tensor})
        seen["same"] = copied["one"] is copied["same"]
        seen["role"] = copied["one"].role
        seen["grad"] = copied["one"].grad is not tensor.grad and copied["one"].grad.shape == (3,)
        with pytest.raises(RuntimeError, match="graph leaves"):
            copy.deepcopy(tensor * 2)
        return TrainingStep(model=nn.Linear(2, 2), inputs=torch.ones(1, 2))

    graphmem.analyze(build, steps=1)
    assert seen == {"same": True, "role": "anchor", "grad": True}


def test_a_configuration_is_pickled_and_copied_inside_build() -> None:
    def build() -> TrainingStep:
        settings = {"width": torch.tensor(8), "dtype": torch.float16, "scale": torch.ones(2) * 2}
        copied = pickle.loads(pickle.dumps(settings))
        again = copy.deepcopy(copied)
        width = int(again["width"])
        return TrainingStep(model=nn.Linear(width, width), inputs=torch.ones(1, width))

    assert graphmem.analyze(build, steps=1).model.parameters == 8 * 8 + 8


def test_a_shallow_copy_has_the_same_memory() -> None:
    def build() -> TrainingStep:
        model, x = nn.Linear(WIDTH, WIDTH), torch.randn(4, WIDTH)

        def step() -> None:
            rows = copy.copy(x)
            weight = copy.copy(model.weight)
            assert isinstance(weight, nn.Parameter)
            assert rows.untyped_storage()._cdata == x.untyped_storage()._cdata
            (model(rows) + rows @ weight).sum().backward()

        return TrainingStep(model=model, step=step)

    options = TraceOptions(steps=2, subclass_like=True)
    oracle.assert_agree(oracle.run(build, options), oracle.traced_events(build, options))


@pytest.mark.parametrize("save", [pickle.dumps, lambda tensor: torch.save(tensor, io.BytesIO())])
def test_a_step_that_saves_tensors_is_refused_at_its_line(save: Callable[[Any], Any]) -> None:
    def build() -> TrainingStep:
        model = nn.Linear(WIDTH, WIDTH)
        return TrainingStep(model=model, step=lambda: save(model.weight))

    with pytest.raises(SaveInTraceError, match=r"analyze` \(.*test_copies\.py:\d+\)") as error:
        graphmem.analyze(build)

    assert "graphmem run" in (error.value.hint or "")
