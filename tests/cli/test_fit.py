"""`graphmem fit`: the largest value that fits, by arithmetic; a search that lists its probes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import graphmem
from graphmem import Report, TrainingStep, fitting
from graphmem.analysis import Request
from graphmem.fitting import CardFit, NothingToTryError
from tests.conftest import Outcome
from tests.support.sizes import MIB

Run = Callable[..., Outcome]

T4_BYTES = 15_637_086_208 - 198 * MIB  # without the context

# A row of 256 MiB, and its ReLU, under inference mode: 512 MiB for each. The T4 has room for 28.
ROW_FLOATS = 64 * MIB
LARGEST = 28

MODEL = f"""
import torch
from graphmem import TrainingStep

def build(batch: int = 1, name: str = "", rows: int = 1) -> TrainingStep:
    if name == "odd" and rows == 3:
        raise ValueError("three")
    return TrainingStep(model=torch.nn.ReLU(), inputs=torch.empty(batch, {ROW_FLOATS}))
"""


def relu(batch: int = 3) -> TrainingStep:
    return TrainingStep(model=nn.ReLU(), inputs=torch.empty(batch, ROW_FLOATS))


@pytest.fixture(scope="module")
def card() -> CardFit:
    return graphmem.fit(relu, gpus=["t4"], inference=True, steps=1).cards[0]


def test_the_batch_that_fits_by_arithmetic(card: CardFit) -> None:
    assert LARGEST == T4_BYTES // (512 * MIB) == card.largest
    assert [probe.value for probe in card.probes][-2:] == [LARGEST, LARGEST + 1]
    assert len(card.probes) <= 4


def test_the_next_batch_fails_at_its_output(card: CardFit) -> None:
    refused = card.refused
    assert refused is not None
    assert (refused.value, refused.requested) == (LARGEST + 1, 29 * 256 * MIB)
    assert refused.op == "aten.relu.default"
    assert "Tried to allocate 7.25 GiB. GPU 0 has a total capacity of 14.56 GiB of which 7.12" in (
        refused.message
    )


def test_every_probe_has_its_peak(card: CardFit) -> None:
    assert [512 * MIB * probe.value for probe in card.probes] == [
        probe.allocated for probe in card.probes
    ]


@pytest.mark.parametrize("batch", [LARGEST, LARGEST + 1])
def test_analyze_agrees_on_both_sides(batch: int) -> None:
    settings = {"batch": str(batch)}
    report = graphmem.analyze(relu, gpu="t4", inference=True, steps=1, settings=settings)

    assert report.memory is not None
    assert report.memory.on_card.fits == (batch <= LARGEST)


def test_an_argument_of_build_and_several_cards() -> None:
    """The context takes 543 MiB of a 40 GB A100: 39.49 GiB less 0.53 are 77 times 512 MiB."""
    found = graphmem.fit(relu, gpus=["t4", "a100-40gb"], vary="batch", inference=True, steps=1)

    assert [
        found.cards[1].largest,
        found.vary,
    ] == [(42_405_855_232 - 543 * MIB) // (512 * MIB), "batch"]
    assert found.cards[0].largest == LARGEST


class Fake:
    """Analyses that take `bytes_of(batch)`, on a card with room for `capacity`."""

    def __init__(self, report: Report, bytes_of: Callable[[int], int], capacity: int) -> None:
        self.report = report
        self.bytes_of = bytes_of
        self.capacity = capacity
        self.values: list[int] = []

    def __call__(self, target: Any, request: Request, progress: Any) -> SimpleNamespace:
        value = request.changes.batch_size
        assert value is not None
        self.values.append(value)
        memory = self.report.memory
        assert memory is not None
        reserved = self.bytes_of(value)
        on_card = msgspec.structs.replace(
            memory.on_card, fits=reserved <= self.capacity, capacity=self.capacity
        )
        memory = msgspec.structs.replace(memory, reserved=reserved, on_card=on_card)
        report = msgspec.structs.replace(self.report, memory=memory)
        return SimpleNamespace(report=report, graph=None, annotations=None, step=None)


@pytest.fixture(scope="module")
def report() -> Report:
    return graphmem.analyze(lambda: relu(1), inference=True, steps=1)


def search(fake: Fake, largest: int = fitting.DEFAULT_LARGEST, unit: int = 1) -> CardFit:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fitting, "run_analysis", fake)
        patched.setattr(fitting, "sizes_of", lambda graph, annotations: None)
        return graphmem.fit(relu, gpus=["t4"], largest=largest, multiple_of=unit).cards[0]


@settings(max_examples=25)
@given(base=st.integers(0, 10**6), slope=st.integers(1, 10**5), capacity=st.integers(10**6, 10**8))
@pytest.mark.slow
def test_the_border_of_a_line_is_found(
    report: Report, base: int, slope: int, capacity: int
) -> None:
    largest = (capacity - base) // slope
    fake = Fake(report, lambda value: base + slope * value, capacity)

    found = search(fake, largest=10**9)

    assert (largest or None) == found.largest
    assert found.surprises == []
    assert len(fake.values) == len(set(fake.values)) == len(found.probes)


@settings(max_examples=25)
@given(unit=st.integers(1, 64), slope=st.integers(1, 1000), capacity=st.integers(64_000, 10**7))
@pytest.mark.slow
def test_only_multiples_are_tried(report: Report, unit: int, slope: int, capacity: int) -> None:
    fake = Fake(report, lambda value: slope * value, capacity)

    found = search(fake, largest=10**9, unit=unit)

    assert capacity // slope // unit * unit == found.largest
    assert all(value % unit == 0 for value in fake.values)


@settings(max_examples=25)
@given(power=st.floats(0.2, 3), capacity=st.integers(10, 10**6))
@pytest.mark.slow
def test_the_border_of_a_curve_is_found_in_few_probes(
    report: Report, power: float, capacity: int
) -> None:
    """Doubling takes log2 of the answer, every second probe halves the rest, then neighbours."""
    fake = Fake(report, lambda value: int(value**power), capacity)

    found = search(fake, largest=2**40)

    assert found.largest is not None
    if found.is_bounded:
        assert int(found.largest**power) <= capacity < int((found.largest + 1) ** power)
    assert len(fake.values) <= 3 * found.largest.bit_length() + 5


def test_a_larger_value_that_fits_again_is_named(report: Report) -> None:
    """9 bytes each, except for two: 11 does not fit, 10 does, and 12 is probed too."""
    taken = {11: 130, 12: 95}
    fake = Fake(report, lambda value: taken.get(value, 9 * value), 100)

    found = search(fake)

    assert found.largest == 10
    assert found.surprises == [
        "batch=12 reserves less than batch=11: 95 and 130 bytes",
        "batch=12 fits again, above one that does not",
    ]


def test_a_smaller_value_that_does_not_fit_is_named(report: Report) -> None:
    """9 bytes each, except for 12, which the search skips; it is next to the answer, 13."""
    taken = {12: 130, 13: 90}
    found = search(Fake(report, lambda value: taken.get(value, 9 * value), 100))

    assert found.largest == 13
    assert "batch=12 does not fit, below one that does" in found.surprises


def test_a_value_that_changes_nothing_is_named(report: Report) -> None:
    found = search(Fake(report, lambda value: 7, 1000), largest=8)

    assert found.surprises == ["batch does not change the reserved bytes, 7 for each value"]


def test_a_search_that_hits_its_limit_says_so(report: Report) -> None:
    found = search(Fake(report, lambda value: value, 1000), largest=100)

    assert (found.largest, found.is_bounded, found.refused) == (100, False, None)


def test_an_empty_range_is_the_users_mistake() -> None:
    with pytest.raises(NothingToTryError):
        graphmem.fit(relu, gpus=["t4"], smallest=5, largest=4)


class TestCommand:
    @pytest.fixture
    def target(self, tmp_path: Path) -> str:
        file = tmp_path / "model.py"
        file.write_text(MODEL)
        return f"{file}:build"

    def test_the_table_and_the_answer(self, run_graphmem: Run, target: str) -> None:
        outcome = run_graphmem("fit", target, "--gpu", "t4", "--inference", "--steps", "1")

        assert outcome.exit_code == 0
        assert "the largest batch that fits on Tesla T4: 28\n" in outcome.stdout
        assert "   28   15,032,385,536   15,032,385,536   fits\n" in outcome.stdout
        assert (
            "   29   15,569,256,448   15,569,256,448   out of memory, but within the uncertainty"
            in outcome.stdout
        )
        assert "some drivers free another 189.1 MiB" in outcome.stdout
        assert (
            "batch=29 is out of memory in the forward phase of step 0 at aten.relu"
            in outcome.stdout
        )

    def test_the_help_names_the_defaults(self, run_graphmem: Run) -> None:
        """rich would read the brackets as markup; they are kept."""
        words = " ".join(run_graphmem("fit", "--help").stdout.replace("│", " ").split())

        assert "[default: that of graphmem.toml, else a100-80gb]" in words
        assert "[default: the batch, the first dimension of the inputs]" in words

    def test_json_into_a_file(self, run_graphmem: Run, target: str, tmp_path: Path) -> None:
        file = tmp_path / "fit.json"
        options = ("--gpu", "t4", "--inference", "--steps", "1", "--vary", "batch", "--min", "28")
        outcome = run_graphmem("fit", target, *options, "--format", "json", "-o", str(file))

        found = json.loads(file.read_text())
        assert (outcome.exit_code, outcome.stdout) == (0, "")
        assert (found["schema"], found["vary"]) == ("graphmem.fit/1", "batch")
        assert [card["largest"] for card in found["cards"]] == [LARGEST]

    def test_not_even_the_smallest_batch_fits(self, run_graphmem: Run, target: str) -> None:
        options = ("--gpu", "t4", "--inference", "--steps", "1", "--min", "40")
        outcome = run_graphmem("fit", target, *options)

        assert outcome.exit_code == 1
        assert "not even batch=40 fits on Tesla T4" in outcome.stdout

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--vary", "batches"), "batches"),
            (("--vary", "batch", "--set", "batch=2"), "batch is varied, and set to 2 as well"),
            (("--gpu", "t44"), "unknown GPU 't44'"),
            (("--min", "0"), "no whole number from 0"),
            (("--min", "9", "--max", "15", "--multiple-of", "8"), "no multiple of 8 from 9 to 15"),
            (("--vary", "name"), "name is not a number that can be varied: its default is ''"),
            (("--set", "rows=many"), "error: parameter 'rows' of build() takes int, not 'many'"),
            (("--min", "3", "--vary", "rows", "--set", "name=odd"), "error: with rows=3: "),
            (("--optimizer", "adamm"), "error: unknown optimizer 'adamm'"),
            (("--env", "PYTORCH_CUDA_ALLOC_CONF=max_split:1"), "max_split"),
        ],
    )
    def test_mistakes_are_one_line_errors(
        self,
        run_graphmem: Run,
        target: str,
        options: tuple[str, ...],
        message: str,
    ) -> None:
        outcome = run_graphmem("fit", target, "--inference", "--steps", "1", *options)

        assert outcome.exit_code == 2
        assert message in outcome.stderr

    @pytest.mark.parametrize(
        ("place", "message"),
        [
            ("missing.py", "error: no such file: missing.py"),
            ("{file}:nothing", "no function 'nothing'"),
        ],
    )
    def test_an_error_that_no_value_would_fix_names_no_value(
        self, run_graphmem: Run, target: str, place: str, message: str
    ) -> None:
        outcome = run_graphmem("fit", place.format(file=target.partition(":")[0]), "--gpu", "t4")

        assert outcome.exit_code == 2
        assert message in outcome.stderr
        assert "with batch" not in outcome.stderr
        assert outcome.stderr.startswith("error: ")
        assert "Traceback" not in outcome.stderr
