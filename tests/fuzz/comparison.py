"""Compare a real run of a program, observed and unobserved, with its trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fixtures.random_program import modules_of, step_of
from graphmem import TrainingStep
from graphmem.errors import InputError
from graphmem.trace import TraceOptions
from tests.fuzz.generator import program_of
from tests.support import oracle, unobserved
from tests.support.oracle import Event

SIZE = 6
STEPS = 2
ATTEMPTS = 8


@dataclass(frozen=True)
class Outcome:
    """The result of comparing a program.

    Attributes:
        verdict: "equal", "invalid" if real PyTorch rejects it, "refused" if the trace does, else
            "differs".
        details: the first difference, or the error.
    """

    verdict: str
    details: str = ""

    @property
    def is_fault(self) -> bool:
        return self.verdict in ("differs", "refused")


def training_step(lines: list[str]) -> TrainingStep:
    """A program as a step, on new tensors and modules."""
    return step_of(lines, modules_of(SIZE), SIZE, "cpu")


def compare(lines: list[str]) -> Outcome:
    """The outcome of the first of both oracles that finds a difference."""
    refused = refusal(lines)
    if refused is not None:
        return Outcome("invalid", refused)
    for both in (_observed, _unobserved):
        try:
            oracle.assert_equal(*both(lines))
        except InputError as error:
            return Outcome("refused", f"{both.__name__}: {error}")
        except RuntimeError as error:
            return Outcome("differs", f"{both.__name__}: the trace fails: {error}")
        except AssertionError as error:
            return Outcome("differs", f"{both.__name__}: {error}")
    return Outcome("equal")


def refusal(lines: list[str]) -> str | None:
    """Real PyTorch's error for a program that does not run."""
    step = training_step(lines).step
    assert step is not None
    try:
        step()
    except Exception as error:  # noqa: BLE001 - whatever real PyTorch rejects is not a program
        return f"{error}".partition("\n")[0]
    return None


def program_that_runs(seed: int) -> list[str]:
    """The first program of a seed that real PyTorch runs, or the last one tried."""
    programs = [program_of(seed, attempt) for attempt in range(ATTEMPTS)]
    return next((lines for lines in programs if refusal(lines) is None), programs[-1])


def _observed(lines: list[str]) -> tuple[list[Event], list[Event]]:
    options = TraceOptions(steps=STEPS, subclass_like=True)
    make = lambda: training_step(lines)  # noqa: E731
    real = oracle.run(make, options)
    traced = oracle.traced_events(make, options)
    return oracle.sorted_where_unordered(real, traced)


def _unobserved(lines: list[str]) -> tuple[list[Event], list[Event]]:
    make = lambda: training_step(lines)  # noqa: E731
    return unobserved.profiled_events(make, STEPS), unobserved.traced_events(make, STEPS)


def reduced(lines: list[str], compare: Callable[[list[str]], Outcome]) -> list[str]:
    """The program without the lines that are irrelevant to the fault."""
    verdict = compare(lines).verdict
    position = len(lines) - 1
    while position >= 0:
        shorter = lines[:position] + lines[position + 1 :]
        if shorter and compare(shorter).verdict == verdict:
            lines = shorter
        position -= 1
    return lines
