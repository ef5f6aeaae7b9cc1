"""A trace of a random program allocates and frees what a real run does.

A few fixed seeds; `python -m tests.fuzz --programs 2000 --reduce` runs many.
"""

from __future__ import annotations

import pytest

from tests.fuzz.comparison import compare, program_that_runs

SEEDS = range(12)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_program_is_traced_as_it_runs(seed: int) -> None:
    lines = program_that_runs(seed)
    outcome = compare(lines)
    assert not outcome.is_fault, "\n".join([*lines, outcome.details])
