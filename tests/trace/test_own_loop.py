"""graphmem's training loop: tensors in the loss's closure, and how long outputs live."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import graphmem
from graphmem import TrainingStep
from graphmem.user_errors import MixedDevicesError

WIDTH, CLASSES, ROWS = 64, 256, 512
LABELS = torch.zeros(ROWS, dtype=torch.int64)
OUTPUT = ROWS * CLASSES * 4
CLOSED_OVER = "host tensors that the loss closes over"


def model() -> nn.Module:
    return nn.Linear(WIDTH, CLASSES)


def rows() -> torch.Tensor:
    return torch.randn(ROWS, WIDTH)


def labels_in_a_closure() -> Any:
    y = torch.zeros(ROWS, dtype=torch.int64)
    return lambda out: functional.cross_entropy(out, y)


def labels_in_a_dict() -> Any:
    batch = {"y": torch.zeros(ROWS, dtype=torch.int64)}
    return lambda out: functional.cross_entropy(out, batch["y"])


def labels_in_a_nested_function() -> Any:
    y = torch.zeros(ROWS, dtype=torch.int64)

    def score(out: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(out, y)

    return lambda out: score(out)  # noqa: PLW0108 - a function that calls another one


def labels_as_a_default() -> Any:
    def loss(out: torch.Tensor, y: torch.Tensor = LABELS) -> torch.Tensor:
        return functional.cross_entropy(out, y)

    return loss


def labels_in_a_partial() -> Any:
    return partial(functional.cross_entropy, target=torch.zeros(ROWS, dtype=torch.int64))


def labels_of_an_object() -> Any:
    class Loss:
        def __init__(self) -> None:
            self.y = torch.zeros(ROWS, dtype=torch.int64)

        def __call__(self, out: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(out, self.y)

    return Loss()


def labels_of_the_file() -> Any:
    return lambda out: functional.cross_entropy(out, LABELS)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (labels_in_a_closure, "y"),
        (labels_in_a_dict, "batch"),
        (labels_in_a_nested_function, "y"),
        (labels_as_a_default, "y"),
        (labels_in_a_partial, "target"),
        (labels_of_an_object, "y"),
        (labels_of_the_file, "LABELS"),
    ],
)
def test_labels_in_the_losss_closure_move_with_the_inputs(make: Any, name: str) -> None:
    moved = graphmem.analyze(lambda: (model(), rows(), make()), steps=2)
    (told,) = [each for each in moved.assumptions if CLOSED_OVER in each.what]
    assert f"({name})" in told.what
    assert "test_own_loop.py" in (told.source or "test_own_loop.py")

    class Labelled(nn.Module):
        """The same, with the labels among the inputs."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = model()

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            self.output = self.inner(x)
            return functional.cross_entropy(self.output, y)

    as_inputs = graphmem.analyze(lambda: (Labelled(), (rows(), LABELS)), steps=2)
    assert moved.peak.allocated == as_inputs.peak.allocated


def test_the_labels_are_back_on_the_host_afterwards() -> None:
    graphmem.analyze(lambda: (model(), rows(), labels_of_the_file()), steps=1)
    assert type(LABELS) is torch.Tensor
    assert LABELS.device.type == "cpu"


def test_a_criterion_with_weights_moves_once() -> None:
    def build() -> Any:
        criterion = nn.CrossEntropyLoss(weight=torch.ones(CLASSES))
        y = torch.zeros(ROWS, dtype=torch.int64)
        return model(), rows(), lambda out: criterion(out, y)

    report = graphmem.analyze(build, steps=2)
    (told,) = [each for each in report.assumptions if CLOSED_OVER in each.what]
    assert "(y, criterion)" in told.what


def test_a_custom_step_with_mixed_devices_is_an_error() -> None:
    def build() -> TrainingStep:
        net = model().cuda()
        y = torch.zeros(ROWS, dtype=torch.int64)

        def step() -> None:
            functional.cross_entropy(net(rows().cuda()), y).backward()

        return TrainingStep(model=net, step=step)

    with pytest.raises(MixedDevicesError):
        graphmem.analyze(build, steps=1)


def outputs_by_hand(*, keep: bool) -> TrainingStep:
    """The usual handwritten loop, labels on the card."""
    net, x = model().cuda(), rows()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    held: dict[str, Any] = {}

    def step() -> None:
        inputs = [x.cuda()]
        if keep:
            held["out"] = net(inputs.pop())
            held["loss"] = held["out"].relu().mean()
        else:
            held["loss"] = net(inputs.pop()).relu().mean()
        held["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()

    return TrainingStep(model=net, step=step)


@pytest.mark.parametrize("keep", [True, False])
def test_an_output_lives_as_long_as_in_a_handwritten_loop(keep: bool) -> None:
    def build() -> TrainingStep:
        return TrainingStep(
            model(),
            rows(),
            lambda out: out.relu().mean(),
            optimizer=partial(torch.optim.SGD, lr=0.1),
            keep_output=keep,
        )

    own = graphmem.analyze(build, steps=3)
    by_hand = graphmem.analyze(lambda: outputs_by_hand(keep=keep), steps=3)
    assert own.peak.allocated == by_hand.peak.allocated


def test_outputs_are_kept_unless_the_step_says_otherwise() -> None:
    """`relu` saves its result, so only the loop's variable keeps the output of the layer."""

    def peak(**options: Any) -> int:
        loss = lambda out: out.relu().mean()  # noqa: E731
        step = lambda: TrainingStep(model(), rows(), loss, **options)  # noqa: E731
        return graphmem.analyze(step, steps=1).peak.allocated

    assert peak() == peak(keep_output=True) == peak(keep_output=False) + OUTPUT


def test_host_inputs_move_to_a_model_on_the_card() -> None:
    on_host = graphmem.analyze(lambda: (model(), rows()), steps=1)
    on_card = graphmem.analyze(lambda: (model().cuda(), rows()), steps=1)
    assert on_host.peak.allocated == on_card.peak.allocated


def test_data_parallel_on_one_card_is_the_module_itself() -> None:
    parallel = graphmem.analyze(lambda: (nn.DataParallel(model()), rows()), steps=1)
    alone = graphmem.analyze(lambda: (model(), rows()), steps=1)
    assert parallel.peak.allocated == alone.peak.allocated
