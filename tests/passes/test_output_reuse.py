"""Which activations keep a tensor that nothing else needs, proven by replacing them."""

from __future__ import annotations

from functools import cache

import msgspec
import pytest

from graphmem.analysis import Analysis, Request, run_analysis
from graphmem.changes import Changes
from tests.support.places import FIXTURES

WIDE = 2 * 4096 * 4096 * 2
"""Bytes of the widened activation: batch, tokens, channels, bfloat16."""


@cache
def analyzed(fixture: str, activation: str, exchange: str | None = None) -> Analysis:
    changes = Changes(activations={activation: exchange} if exchange else {})
    request = Request(
        steps=1, settings={"activation": activation.replace("-", "_")}, changes=changes
    )
    return run_analysis(f"{FIXTURES / fixture}.py:build", request)


@pytest.mark.parametrize(
    ("activation", "written_in", "costs"),
    [
        ("relu", "output", 0),
        ("tanh", "output", 0),
        ("sigmoid", "output", 0),
        ("gelu", "input", WIDE),
        ("silu", "input", WIDE),
        ("leaky_relu", "input", WIDE),
        ("leaky_relu_inplace", "output", 0),
    ],
)
def test_what_an_activation_costs_follows_from_its_formula(
    activation: str, written_in: str, costs: int
) -> None:
    (found,) = analyzed("mlp", activation).annotations["output_reuse"].activations

    assert (found.written_in, found.costs_bytes) == (written_in, costs)


@pytest.mark.parametrize(
    ("old", "new"),
    [("gelu", "relu"), ("silu", "tanh"), ("gelu", "sigmoid"), ("leaky_relu", "leaky_relu-inplace")],
)
def test_a_predicted_saving_is_that_of_the_changed_model(old: str, new: str) -> None:
    before, after = analyzed("mlp", old), analyzed("mlp", old, new)
    (found,) = before.annotations["output_reuse"].activations

    saved = before.report.saved_for_backward - after.report.saved_for_backward
    assert found.exchange_saves_bytes == saved == WIDE


@pytest.mark.parametrize(
    ("fixture", "before", "after", "ratio"),
    [
        ("mlp", 150_994_944, 83_886_080, 0.5556),
        ("transformer_block", 268_632_080, 201_523_216, 0.7502),
    ],
)
def test_the_published_ratios_of_relu_to_gelu(
    fixture: str, before: int, after: int, ratio: float
) -> None:
    """The activation memory article (docs/sources.md)."""
    gelu = analyzed(fixture, "gelu").report.saved_for_backward
    relu = analyzed(fixture, "gelu", "relu").report.saved_for_backward

    assert (gelu, relu) == (before, after)
    assert round(relu / gelu, 4) == ratio


def test_relu_squared_pays_for_one_tensor_and_not_for_two() -> None:
    """The square keeps the ReLU's result, which the ReLU keeps too."""
    gelu = analyzed("mlp", "gelu").report.saved_for_backward
    squared = analyzed("mlp", "gelu", "relu2").report.saved_for_backward

    assert squared == gelu


def test_replacing_an_activation_with_itself_changes_nothing() -> None:
    before = analyzed("mlp", "gelu").report
    after = analyzed("mlp", "gelu", "gelu").report

    assert after.options == f"{before.options} --activation gelu=gelu"
    assert msgspec.structs.replace(after, options=before.options) == before
