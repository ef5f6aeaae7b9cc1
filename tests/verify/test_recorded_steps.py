"""Whole steps allocate what they did on an H100: every allocation, every free, and both peaks.

The recordings are in `fixtures/cuda/steps` and name their source; docs/accuracy_h100.md lists
them all, including those that differ, by the release that made them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from graphmem.torch_releases import installed_release
from graphmem.verify.own_cases import known_gaps
from tests.conftest import Outcome
from tests.support.places import ROOT

STEPS = ROOT / "fixtures" / "cuda" / "steps"
ACTIVATIONS, TECHNIQUES = (
    sorted(path.name.split(".")[0] for path in STEPS.glob(name))
    for name in ("mlp_*", "technique_*")
)
if installed_release() >= (2, 15):  # `linear` returns no view any more (docs/versions.md)
    ACTIVATIONS.remove("mlp_relu_inplace")


@pytest.mark.parametrize(
    "names",
    [
        TECHNIQUES[::2],
        TECHNIQUES[1::2],
        ACTIVATIONS,
        ["linear_stack_relu", "linear_stack_sgd", "lstm_bf16", "transformer_block"],
        ["gpt2_sdpa_bf16", "gpt2_expandable"],
        pytest.param(["gpt2_infer"], marks=pytest.mark.slow),
        ["llama_bf16"],
        pytest.param(["llama"], marks=pytest.mark.slow),
    ],
    ids=lambda names: str(names[0]),
)
def test_every_event_and_both_peaks_are_the_cards(
    names: list[str], run_graphmem: Callable[..., Outcome]
) -> None:
    files = [str(STEPS / f"{name}.events.json.gz") for name in names]

    outcome = run_graphmem("verify", *files)

    assert (outcome.exit_code, outcome.stderr) == (0, "")
    assert outcome.stdout.count(" none ") == len(names)


def rows_of_the_page() -> dict[str, list[str]]:
    """First mismatch, and both errors, by the step."""
    lines = (ROOT / "docs" / "accuracy_h100.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][2:]
    return {row[0]: [row[2], row[5], row[8]] for row in rows}


def test_the_page_has_every_recorded_step() -> None:
    assert sorted(rows_of_the_page()) == sorted(
        path.name.removesuffix(".events.json.gz") for path in STEPS.glob("*.events.json.gz")
    )


def test_exactly_the_differing_steps_have_a_cause() -> None:
    differing = [name for name, row in rows_of_the_page().items() if row != ["none", "0", "0"]]

    assert sorted(differing) == sorted(known_gaps(STEPS))


def test_a_step_that_differs_says_why(run_graphmem: Callable[..., Outcome]) -> None:
    outcome = run_graphmem("verify", str(STEPS / "lstm.events.json.gz"))

    assert outcome.exit_code == 0
    assert f"lstm: known gap: {known_gaps(STEPS)['lstm'][:40]}" in " ".join(outcome.stdout.split())
