"""Compare a real run of a program, observed and unobserved, with its trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from fixtures.random_program import modules_of, step_of
from graphmem import TrainingStep
from graphmem.errors import InputError
from graphmem.trace import TraceOptions
from tests.fuzz.generator import program_of
from tests.fuzz.wide import SCOPE, wide_modules_of, wide_program_of
from tests.support import oracle, unobserved
from tests.support.oracle import Build, Event

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


def training_step(lines: list[str], *, wide: bool = False) -> TrainingStep:
    """A program as a step, on new tensors and modules."""
    modules = (wide_modules_of if wide else modules_of)(SIZE)
    return step_of(lines, modules, SIZE, "cpu", names=SCOPE if wide else None)


def compare(lines: list[str], *, wide: bool = False) -> Outcome:
    """The outcome of the first of both oracles that finds a difference."""
    make = partial(training_step, lines, wide=wide)
    refused = refusal(make)
    if refused is not None:
        return Outcome("invalid", refused)
    for both in (_observed, _unobserved):
        try:
            oracle.assert_equal(*both(make))
        except InputError as error:
            return Outcome("refused", f"{both.__name__}: {error}")
        except RuntimeError as error:
            return Outcome("differs", f"{both.__name__}: the trace fails: {error}")
        except AssertionError as error:
            return Outcome("differs", f"{both.__name__}: {error}")
    return Outcome("equal")


def refusal(make: Build) -> str | None:
    """Real PyTorch's error for a program that does not run."""
    step = make().step
    assert step is not None
    try:
        step()
    except Exception as error:  # noqa: BLE001 - whatever real PyTorch rejects is not a program
        return f"{error}".partition("\n")[0]
    return None


def program_that_runs(seed: int, *, wide: bool = False) -> list[str]:
    """The first program of a seed that real PyTorch runs, or the last one tried."""
    of_seed = wide_program_of if wide else program_of
    programs = [of_seed(seed, attempt) for attempt in range(ATTEMPTS)]
    runs = (
        lines for lines in programs if refusal(partial(training_step, lines, wide=wide)) is None
    )
    return next(runs, programs[-1])


def _observed(make: Build) -> tuple[list[Event], list[Event]]:
    options = TraceOptions(steps=STEPS, subclass_like=True)
    real = oracle.run(make, options)
    traced = oracle.traced_events(make, options)
    return oracle.sorted_where_unordered(real, traced)


def _unobserved(make: Build) -> tuple[list[Event], list[Event]]:
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
