"""`graphmem whatif` and its changes: exact, because the changed step is traced."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from graphmem import TrainingStep
from graphmem.analysis import Request, run_analysis
from graphmem.changes import Changes
from graphmem.changes.messages import BatchOutOfReachError
from graphmem.overrides import StepRunsItselfError
from tests.support.places import FIXTURES

GPT2 = f"{FIXTURES / 'gpt2'}.py:build"
MLP = f"{FIXTURES / 'mlp'}.py:build"


def rows(text: str) -> dict[str, tuple[int, int]]:
    return {row["name"]: (row["before"], row["after"]) for row in json.loads(text)["rows"]}


def test_every_option_at_once(run_graphmem: Callable[..., Any]) -> None:
    outcome = run_graphmem(
        *("whatif", GPT2, "--set", "batch=1", "--steps", "1", "--format", "json"),
        *("--autocast", "bf16", "--freeze", "h.[0-5].*", "--checkpoint", "h.*"),
        *("--activation", "gelu=relu", "--optimizer", "sgd", "--batch", "2x"),
    )

    assert outcome.exit_code == 0
    found = rows(outcome.stdout)
    assert found["peak allocated"][1] < found["peak allocated"][0]
    for side in (0, 1):
        categories = sum(pair[side] for name, pair in found.items() if name in _CATEGORIES)
        assert categories == found["peak allocated"][side]


_CATEGORIES = (
    "parameter buffer gradient optimizer_state activation autocast_cache input temporary "
    "workspace rounding"
).split()


def test_the_table_for_people(run_graphmem: Callable[..., Any]) -> None:
    arguments = ("--set", "activation=gelu", "--steps", "1", "--activation", "gelu=relu")
    outcome = run_graphmem("whatif", MLP, *arguments)

    (line,) = (each for each in outcome.stdout.splitlines() if each.startswith("saved for backw"))
    assert line.split() == [
        *("saved", "for", "backward"),
        *("150,994,944", "83,886,080", "-67,108,864", "-64.0", "MiB"),
    ]


def test_autocast_can_be_turned_off_and_the_batch_set() -> None:
    """Matches what build() makes without autocast, for another batch."""
    settings = {"batch": "2", "layers": "2"}
    off = Request(steps=1, settings=settings, autocast="none", changes=Changes(batch_size=3))
    built = Request(steps=1, settings={**settings, "batch": "3", "autocast": "None"})

    found = run_analysis(GPT2, off).report
    assert found.peak == run_analysis(GPT2, built).report.peak
    assert found.at_peak.by_category["autocast_cache"] == 0


def test_16_bit_weights_and_the_headroom(run_graphmem: Callable[..., Any]) -> None:
    """Two matrices of 1024 x 4096 and their biases; the capacity is an A100 less its context."""
    arguments = ("--set", "dtype=fp32", "--steps", "1", "--dtype", "bf16", "--format", "json")
    outcome = run_graphmem("whatif", MLP, *arguments)

    assert outcome.exit_code == 0, outcome.stderr
    found = rows(outcome.stdout)
    parameters = 2 * 1024 * 4096 + 4096 + 1024
    assert found["parameter"] == (4 * parameters, 2 * parameters)
    room = 85_100_068_864 - 543 * 2**20
    reserved = found["peak reserved"]
    assert found["left on the card"] == (room - reserved[0], room - reserved[1])


def test_a_scaled_batch_is_what_build_would_make() -> None:
    scaled = run_analysis(GPT2, Request(steps=1, settings={"batch": "1"}, changes=Changes(batch=3)))
    built = run_analysis(GPT2, Request(steps=1, settings={"batch": "3"}))

    assert scaled.report.peak == built.report.peak
    assert scaled.report.at_peak.by_category == built.report.at_peak.by_category


def test_checkpointing_by_pattern_is_checkpointing_in_the_model() -> None:
    settings = {"layers": "4", "seq": "256"}
    llama = f"{FIXTURES / 'llama'}.py:build"
    by_pattern = Request(steps=1, settings=settings, changes=Changes(checkpoint=("layers.*",)))
    in_model = Request(steps=1, settings={**settings, "checkpoint": "non-reentrant"})

    found = run_analysis(llama, by_pattern).report
    assert found.peak.allocated == run_analysis(llama, in_model).report.peak.allocated


def test_activations_are_replaced_as_modules_functions_and_methods() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.ReLU()
            self.scale = nn.Parameter(torch.ones(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.module(torch.relu(nn.functional.relu((x * self.scale).relu())))

    def build() -> TrainingStep:
        return TrainingStep(model=Mixed(), inputs=torch.randn(4, 8), loss=torch.sum)

    graph = run_analysis(
        build, Request(steps=1, changes=Changes(activations={"relu": "tanh"}))
    ).graph

    targets = [op.target for op in graph.ops]
    assert targets.count("aten.tanh.default") == 4
    assert "aten.relu.default" not in targets


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to change"),
        (("--batch", "much"), "--batch 'much' is not a factor"),
        (("--batch", "0"), "--batch must be at least 1"),
        (("--dtype", "bf16", "--autocast", "fp16"), "--dtype bf16 is without autocast"),
        (("--activation", "gelu=magic"), "cannot replace the activation 'gelu' with 'magic'"),
        (("--checkpoint", "nothing"), "no module is called 'nothing'"),
        (("--freeze", "nothing"), "no parameter or module is called 'nothing'"),
    ],
)
def test_what_cannot_be_changed_is_reported(
    run_graphmem: Callable[..., Any], arguments: tuple[str, ...], message: str
) -> None:
    outcome = run_graphmem("whatif", MLP, "--steps", "1", *arguments)

    assert outcome.exit_code == 2
    assert message in outcome.stderr


def test_a_step_that_runs_itself_keeps_its_inputs() -> None:
    def build() -> TrainingStep:
        return TrainingStep(step=lambda: None)

    with pytest.raises(StepRunsItselfError):
        run_analysis(build, Request(steps=1, autocast="none"))
    with pytest.raises(BatchOutOfReachError):
        run_analysis(build, Request(steps=1, changes=Changes(batch=2)))


def test_a_saved_step_has_nothing_to_change(run_graphmem: Callable[..., Any]) -> None:
    done = run_graphmem("whatif", "step.graphmem", "--batch", "2x")

    assert done.exit_code == 2
    assert "it has no build() to call again" in done.stderr
