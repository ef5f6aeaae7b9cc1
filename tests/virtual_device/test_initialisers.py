"""Weights need no values, so initialisers run without data-dependent loops."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.init import orthogonal_, trunc_normal_

import graphmem
from graphmem import TrainingStep
from graphmem.errors import InputError
from graphmem.trace import TraceOptions
from tests.support import oracle

WIDTH = 100


@pytest.mark.parametrize(
    "initialise",
    [
        trunc_normal_,
        lambda weight: trunc_normal_(weight, a=1.5, b=3.0),  # with uniform candidates
        orthogonal_,
        nn.init.orthogonal_,
        nn.init.kaiming_normal_,
        nn.init.xavier_uniform_,
        nn.init.eye_,
        lambda weight: nn.init.sparse_(weight, sparsity=0.1),
        lambda weight: nn.init.dirac_(weight.view(WIDTH, WIDTH, 1)),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_model_is_initialised(initialise: Callable[..., Any], device: str) -> None:
    def build() -> Any:
        layer = nn.Linear(WIDTH, WIDTH, bias=False, device=device)
        initialise(layer.weight)
        initialise(layer.weight.data)
        return layer, torch.ones(2, WIDTH, device=device)

    report = graphmem.analyze(build, steps=1)
    assert report.model.parameter_bytes == WIDTH * WIDTH * 4


def test_a_tensor_an_initialiser_rejects_is_still_an_error() -> None:
    def build() -> Any:
        nn.init.orthogonal_(nn.Parameter(torch.ones(3)))

    with pytest.raises(InputError, match="Only tensors with 2 or more dimensions"):
        graphmem.analyze(build, steps=1)


def test_numbers_never_out_of_bounds_are_drawn_once_without_an_assumption() -> None:
    """Two is a hundred standard deviations away: of 90,000 numbers none is out of bounds."""

    def build() -> TrainingStep:
        weight = nn.Linear(WIDTH, WIDTH, device="cuda").weight
        step = lambda: trunc_normal_(weight, std=0.02)  # noqa: E731
        return TrainingStep(model=nn.Linear(2, 2), step=step)

    report = graphmem.analyze(build, steps=1)
    assert not [each for each in report.assumptions if "trunc_normal_" in each.what]


@pytest.mark.parametrize(("a", "b"), [(-2.0, 2.0), (-0.6, 0.6), (1.5, 3.0)])
def test_truncated_normals_take_what_a_real_run_takes(a: float, b: float) -> None:
    """Compares the peak only, since the number of redraws is random."""

    def make() -> TrainingStep:
        weight = torch.empty(WIDTH, WIDTH)

        def step() -> None:
            trunc_normal_(weight, a=a, b=b)

        return TrainingStep(model=nn.Linear(2, 2), step=step)

    options = TraceOptions(steps=1, subclass_like=True)
    real, traced = oracle.run(make, options).events, oracle.traced_events(make, options)
    assert _highest(traced) == _highest(real)


def _highest(events: list[oracle.Event]) -> int:
    now = highest = 0
    for event in events:
        now += (event.nbytes or 0) * (1 if event.kind == "alloc" else -1)
        highest = max(now, highest)
    return highest


def test_a_model_of_405_billion_parameters_is_built_in_seconds() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=128256,
        hidden_size=16384,
        intermediate_size=53248,
        num_hidden_layers=126,
        num_attention_heads=128,
        num_key_value_heads=8,
        dtype="bfloat16",
    )
    took: list[float] = []

    def build() -> TrainingStep:
        begun = time.process_time()
        model = transformers.LlamaForCausalLM._from_config(config)
        took.append(time.process_time() - begun)
        return TrainingStep(model=model, step=lambda: None)

    graphmem.analyze(build, steps=1)
    assert took[0] < 60


def test_initialisers_keep_their_names_and_signatures() -> None:
    """Libraries list them by name, as `class_resolver` (pykeen) does for its table."""
    import inspect

    from torch.nn import init

    names = [name for name in dir(init) if name.endswith("_") and not name.startswith("_")]
    before = {name: inspect.signature(getattr(init, name)) for name in names}
    with graphmem.virtual_gpu("t4"):
        assert [getattr(init, name).__name__ for name in names] == names
        assert {name: inspect.signature(getattr(init, name)) for name in names} == before
