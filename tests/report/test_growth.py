"""What a step keeps of each iteration is named as a leak, with the variable that holds it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import graphmem
from graphmem.frames import short_path
from graphmem.report.schema import GROWTH, Report
from tests.conftest import Outcome

THIS = short_path(__file__)
ROWS, WIDTH = 512, 1024
BATCH = ROWS * WIDTH * 4
RunGraphmem = Callable[..., Outcome]

MODEL = """
import torch
from graphmem import TrainingStep

def build():
    model = torch.nn.Linear(1024, 1024, bias=False).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    history = []

    def step():
        x = torch.randn(512, 1024, device="cuda")
        output = model(x)
        output.sum().backward(retain_graph=True)
        optimizer.step()
        optimizer.zero_grad()
        history.append(output)

    return TrainingStep(step=step)
"""
LEAK = (
    "4.0 MiB (4,194,304 bytes) more every iteration, 8.0 MiB (8,388,608 bytes) after 2 iterations: "
    "held by `history` ({}:16), with the graph that autograd keeps for it"
)
"""An output and the batch that autograd keeps for it: two tensors of 512 x 1024 floats."""


def leaks_in(report: Report) -> list[str]:
    lines = [line for each in report.findings if each.found_by == GROWTH for line in each.lines]
    return [line for line in lines if not line.startswith(" ")]


def leaks_of(make: Callable[[], Callable[[], Any]], steps: int = 3) -> list[str]:
    return leaks_in(graphmem.analyze(lambda: graphmem.TrainingStep(step=make()), steps=steps))


class Trainer:
    """Keeps what `keep` makes of each output."""

    def __init__(self, keep: Callable[[Any, torch.Tensor], object]) -> None:
        self.keep = keep
        self.model = nn.Linear(WIDTH, WIDTH, bias=False).cuda()
        self.outputs: list[torch.Tensor] = []
        self.by_name: dict[str, list[torch.Tensor]] = {"output": []}
        self.last_two: deque[torch.Tensor] = deque(maxlen=2)
        self.last: torch.Tensor | None = None

    def step(self) -> None:
        output = self.model(torch.randn(ROWS, WIDTH, device="cuda"))
        output.sum().backward()
        self.keep(self, output.detach())


def append(trainer: Trainer, output: torch.Tensor) -> None:
    trainer.outputs.append(output)


def replace(trainer: Trainer, output: torch.Tensor) -> None:
    trainer.last = output


def keep_two(trainer: Trainer, output: torch.Tensor) -> None:
    trainer.last_two.append(output)


def test_analyze_names_a_leak_as_run_does(run_graphmem: RunGraphmem, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    target = f"{tmp_path / 'model.py'}:build"
    analysed = run_graphmem("analyze", target, "--gpu", "t4", "--no-advice")
    ran = run_graphmem("run", "--gpu", "t4", target)

    leak = f"a leak: {LEAK.format(tmp_path / 'model.py')}"
    assert leak in " ".join(analysed.stdout.split())
    before, total, after = leak.partition(f"8.0 MiB ({2 * 2 * BATCH:,}")
    without_the_first_batch = (
        f"6.0 MiB ({2 * 2 * BATCH - BATCH:,}"  # made before the first iteration
    )
    assert total
    assert f"{before}{without_the_first_batch}{after}" in " ".join(ran.stderr.split())


def test_a_saved_step_knows_its_leak(run_graphmem: RunGraphmem, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    saved = tmp_path / "step.graphmem"
    run_graphmem("analyze", f"{tmp_path / 'model.py'}:build", "--save", str(saved), "--no-advice")

    assert leaks_in(graphmem.analyze(str(saved))) == [LEAK.format(tmp_path / "model.py")]


def test_longer_traces_count_more_iterations() -> None:
    """All but the last, whose variables the next one would replace."""
    (leak,) = leaks_of(lambda: Trainer(append).step, steps=5)

    total = f"8.0 MiB ({4 * BATCH:,} bytes) after 4 iterations"
    assert leak.startswith(f"2.0 MiB ({BATCH:,} bytes) more every iteration, {total}")


@pytest.mark.parametrize("keep", [replace, keep_two])
def test_what_the_next_iterations_replace_is_no_leak(
    keep: Callable[[Trainer, torch.Tensor], None],
) -> None:
    assert leaks_of(lambda: Trainer(keep).step) == []


@pytest.mark.parametrize(("most", "leaks"), [(None, 1), (3, 0)])
def test_a_deque_without_a_bound_leaks(most: int | None, leaks: int) -> None:
    kept: deque[torch.Tensor] = deque(maxlen=most)

    assert len(leaks_of(lambda: Trainer(lambda _, output: kept.append(output)).step)) == leaks


REPLAY = """
import random
from collections import deque

import torch

class Memory:
    def __init__(self):
        self.seen = deque(maxlen={most})

memory = Memory()
model = torch.nn.Linear(256, 256, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), 0.1)

def learn():
    batch = random.sample(memory.seen, 2)
    model(torch.stack([state for state, _ in batch])).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

for step in range(12):
    memory.seen.append((torch.ones(256, device="cuda"), step))
    memory.seen.append((torch.ones(256, device="cuda"), step))
    learn()
"""


@pytest.mark.parametrize(("most", "names"), [("None", "`memory.seen`"), ("100", "")])
def test_a_replay_memory_with_a_bound_is_no_leak(
    most: str, names: str, run_graphmem: RunGraphmem, tmp_path: Path
) -> None:
    """Nor is it one of the batch that is drawn from it."""
    script = tmp_path / "train.py"
    script.write_text(REPLAY.format(most=most))

    outcome = run_graphmem("run", "--gpu", "t4", str(script))

    assert "held by `batch`" not in outcome.stderr
    assert ("memory that grows" in outcome.stderr) is bool(names)
    assert names in outcome.stderr


def test_an_attribute_is_named_where_it_grows() -> None:
    class Logger:
        def __init__(self) -> None:
            self.outputs: list[torch.Tensor] = []

        def log(self, output: torch.Tensor) -> None:
            self.outputs.append(output)

    logger = Logger()
    (leak,) = leaks_of(lambda: Trainer(lambda _, output: logger.log(output)).step)

    line = Logger.log.__code__.co_firstlineno + 1
    assert f"held by `logger.outputs` ({THIS}:{line})" in leak


def test_a_mapping_whose_values_cannot_be_read_is_searched_by_its_attributes() -> None:
    """OmegaConf's configurations end with an error where a value is missing."""

    class Settings(Mapping[str, object]):
        def __init__(self) -> None:
            self.outputs: list[torch.Tensor] = []

        def __getitem__(self, name: str) -> object:
            raise ValueError("missing")

        def __iter__(self) -> Iterator[str]:
            return iter(["job"])

        def __len__(self) -> int:
            return 1

    settings = Settings()
    (leak,) = leaks_of(lambda: Trainer(lambda _, output: settings.outputs.append(output)).step)

    assert "held by `settings.outputs`" in leak


def test_what_an_argument_of_a_partial_keeps_is_a_leak() -> None:
    def step(model: nn.Module, kept: dict[str, list[torch.Tensor]]) -> None:
        output = model(torch.randn(ROWS, WIDTH, device="cuda"))
        output.sum().backward()
        kept["output"].append(output.detach())

    (leak,) = leaks_of(lambda: partial(step, nn.Linear(WIDTH, WIDTH).cuda(), {"output": []}))

    assert f"held by `kept` ({THIS}:{step.__code__.co_firstlineno + 3})" in leak


def test_what_a_models_attribute_keeps_is_a_leak() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(WIDTH, WIDTH, bias=False)
            self.seen: list[torch.Tensor] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            output = self.inner(x)
            self.seen.append(output.detach())
            return output.sum()

    report = graphmem.analyze(Net(), torch.randn(ROWS, WIDTH))

    (leak,) = leaks_in(report)
    line = Net.forward.__code__.co_firstlineno + 2
    assert f"held by `Net.seen` ({THIS}:{line})" in leak


def test_what_a_hook_keeps_is_a_leak() -> None:
    seen: list[torch.Tensor] = []
    model = nn.Linear(WIDTH, WIDTH, bias=False)

    def keep(module: nn.Module, args: Any, output: torch.Tensor) -> None:
        seen.append(output.detach())

    model.register_forward_hook(keep)
    (leak,) = leaks_in(graphmem.analyze(model, torch.randn(ROWS, WIDTH)))

    assert f"held by `seen` ({THIS}:{keep.__code__.co_firstlineno + 1})" in leak
