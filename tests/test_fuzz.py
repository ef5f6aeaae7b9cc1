"""Random programs allocate and free in a trace what they do in a real run.

A few fixed seeds; `python -m tests.fuzz --programs 2000 --reduce` runs many.
"""

from __future__ import annotations

import pytest

from tests.fuzz.comparison import compare
from tests.fuzz.generator import program_of
from tests.fuzz.known import cause_of

SEEDS = range(12)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_program_is_traced_as_it_runs(seed: int) -> None:
    lines = program_of(seed)
    outcome = compare(lines)
    if outcome.is_fault and cause_of(lines) is None:
        pytest.fail("\n".join([*lines, outcome.details]), pytrace=False)
