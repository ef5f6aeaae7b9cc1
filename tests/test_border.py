"""The search for the largest size that fits: few traces, and both sides of the limit verified."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import graphmem
from graphmem import fitting
from graphmem.analysis import Analysis, Request, run_analysis
from graphmem.changes import Changes
from graphmem.other_sizes import Line, large_prime_of, sizes_of

REQUEST = Request(gpu="t4", steps=2)
WIDTH, LENGTH = 4096, 1024


class Attending(nn.Module):
    """Its clones and scratch memory differ between one sequence and many."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, 1000)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(self.words(tokens))).chunk(3, -1)
        q, k, v = (each.unflatten(-1, (32, -1)).transpose(1, 2) for each in (q, k, v))
        mixed = ((q @ k.transpose(-1, -2)).softmax(-1) @ v).transpose(1, 2).flatten(2)
        logits: torch.Tensor = self.head(mixed)
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def attending() -> Any:
    return Attending(), torch.zeros(2, LENGTH, dtype=torch.long), lambda loss: loss


def perceptron() -> Any:
    model = nn.Sequential(nn.Linear(512, 65_536), nn.GELU(), nn.Dropout(), nn.Linear(65_536, 8))
    return model, torch.randn(4, 512)


def pixels() -> Any:
    model = nn.Sequential(
        nn.Conv2d(3, 256, 3), nn.BatchNorm2d(256), nn.ReLU(), nn.Conv2d(256, 8, 3)
    )
    return model, torch.randn(4, 3, 128, 128)


def analysed(build: Any, batch: int, gpu: str = "t4") -> Analysis:
    return run_analysis(build, replace(REQUEST, gpu=gpu, changes=Changes(batch_size=batch)))


def fits(analysis: Analysis) -> bool:
    assert analysis.report.memory is not None
    return analysis.report.memory.on_card.fits


@pytest.mark.parametrize(
    "build", [attending, perceptron, pytest.param(pixels, marks=pytest.mark.slow)]
)
def test_four_traces_prove_the_border(build: Any) -> None:
    card = graphmem.fit(build, gpus=["t4"], steps=2).cards[0]

    assert card.largest is not None
    assert len(card.probes) <= 4
    assert fits(analysed(build, card.largest))
    assert not fits(analysed(build, card.largest + 1))
    assert card.refused is not None
    assert card.refused.value == card.largest + 1


def test_other_cards_start_where_the_first_ended() -> None:
    """Both sides of each limit are traced on the card itself."""
    cards = graphmem.fit(attending, gpus=["t4", "a100-40gb", "h100-80gb"], steps=2).cards

    for card in cards[1:]:
        assert card.largest is not None
        assert [probe.value for probe in card.probes] == [card.largest, card.largest + 1]
        assert [probe.fits for probe in card.probes] == [True, False]


@pytest.mark.parametrize(
    "build",
    [
        attending,
        pytest.param(perceptron, marks=pytest.mark.slow),
        pytest.param(pixels, marks=pytest.mark.slow),
    ],
)
def test_predicted_probes_match_traced_ones(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer and every probe match those of a search without predictions."""
    found = graphmem.fit(build, gpus=["t4"], steps=2).cards[0]
    monkeypatch.setattr(fitting, "sizes_of", lambda graph, annotations: None)
    traced = graphmem.fit(build, gpus=["t4"], steps=2).cards[0]

    assert (found.largest, found.refused) == (traced.largest, traced.refused)
    by_value = {probe.value: probe for probe in traced.probes}
    assert all(by_value.get(probe.value, probe) == probe for probe in found.probes)


def test_interpolated_sizes_match_a_trace() -> None:
    sizes = {}
    for batch in (23, 29, 26, 41):
        analysis = analysed(perceptron, batch)
        sizes[batch] = sizes_of(analysis.graph, analysis.annotations)
    line = Line.through({batch: sizes[batch] for batch in (23, 29)})

    assert line is not None
    for batch in (26, 41):
        assert line.nbytes(batch) == list(sizes[batch].nbytes)


def test_one_trace_shows_what_grows_with_its_batch() -> None:
    """23 is no dimension of the model, so any size it divides belongs to the batch."""
    sizes = {}
    for batch in (23, 26):
        analysis = analysed(perceptron, batch)
        sizes[batch] = sizes_of(analysis.graph, analysis.annotations)
    line = Line.alone(23, sizes[23])

    assert line is not None
    assert line.nbytes(26) == list(sizes[26].nbytes)


@pytest.mark.parametrize(
    ("value", "prime"), [(1, None), (48, None), (38, 19), (121, 11), (2 * 11 * 13, 13), (97, 97)]
)
def test_the_large_prime_of_a_batch(value: int, prime: int | None) -> None:
    assert large_prime_of(value) == prime
