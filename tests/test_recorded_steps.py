"""Whole steps take what they took on an H100: every allocation, every free, and both peaks.

The recordings are in `fixtures/cuda/steps` and say what they were made from; docs/accuracy_h100.md
has them all, also those that differ, by the release on which they were made.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome

STEPS = Path(__file__).parent.parent / "fixtures" / "cuda" / "steps"
TECHNIQUES = sorted(path.name.split(".")[0] for path in STEPS.glob("technique_*"))


@pytest.mark.parametrize(
    "names",
    [
        TECHNIQUES[::2],
        TECHNIQUES[1::2],
        ["mlp_relu", "mlp_gelu_tanh", "mlp_dropout", "mlp_leaky_relu"],
        ["linear_stack_relu", "linear_stack_sgd", "lstm_bf16", "transformer_block"],
        ["gpt2_infer", "gpt2_sdpa_bf16", "gpt2_expandable"],
        ["llama", "llama_bf16"],
    ],
    ids=lambda names: str(names[0]),
)
def test_every_event_and_both_peaks_are_those_of_the_card(
    names: list[str], run_graphmem: Callable[..., Outcome]
) -> None:
    files = [str(STEPS / f"{name}.events.json.gz") for name in names]

    outcome = run_graphmem("verify", *files)

    assert (outcome.exit_code, outcome.stderr) == (0, "")
    assert outcome.stdout.count(" none ") == len(names)
