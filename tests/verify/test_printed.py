"""Cases that compare with printed figures: their files, and every figure in the repository."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphmem.errors import InputError
from graphmem.verify import PrintedCase, read_case, read_cases, run_printed
from graphmem.verify.cases import default_cases
from graphmem.verify.messages import (
    NeedlessGapError,
    NotCaseError,
    NotFigureError,
    RowGapMismatchError,
)
from graphmem.verify.printed import parse_figure, parse_quantity
from tests.conftest import Outcome
from tests.support.places import FIXTURES

CASES = [case for case in read_cases(default_cases()) if isinstance(case, PrintedCase)]

Run = Callable[..., Outcome]

CASE = f"""
source = "fairscale"
target = "{FIXTURES}/printed_checkpoint.py:build"
figure = "max allocated in step 0"
gpu = "v100"
torch = "1.12"
env = {{ CUBLAS_WORKSPACE_CONFIG = ":0:0", CUBLASLT_WORKSPACE_SIZE = "0" }}
printed = [{{ value = "98816" }}, {{ value = "96.5 KiB", settings = {{ variant = "plain" }} }}]
"""
"""fairscale's test asserts 98,816 bytes, 96.5 KiB."""


FULL_CASE = f"""
source = "arithmetic"
target = "{FIXTURES}/printed_small.py:build_linears"
settings = {{ layers = 60 }}
gpu = "v100"
torch = "2.4"
printed = [
  {{ figure = "allocated when full at 2 MiB", value = "2088960" }},
  {{ figure = "unallocated when full at 2 MiB", value = "8.0 KiB" }},
]
"""


def case_from(folder: Path, text: str = CASE) -> PrintedCase:
    path = folder / "case.toml"
    path.write_text(text)
    case = read_case(path)
    assert isinstance(case, PrintedCase)
    return case


class TestQuantities:
    @pytest.mark.parametrize(
        ("text", "nbytes", "error"),
        [
            ("38912", 38_912, 0),
            ("38912", 39_424, 512),
            ("40.00 KiB", 40_960, 0),
            ("40.00 KiB", 40_964, 0),  # 40.0039
            ("40.00 KiB", 40_966, 6),  # 40.0059, printed as 40.01
            ("1.5 MB", 1_549_999, 0),
            ("1.5 MB", 1_440_000, -60_000),
        ],
    )
    def test_figures_are_equal_if_they_print_alike(
        self, text: str, nbytes: int, error: int
    ) -> None:
        assert parse_quantity(text).error_of(nbytes) == error

    def test_a_float32_of_more_than_16_gib_in_mib_counts_steps_of_two_kib(self) -> None:
        printed = parse_quantity("20480.125 MiB", is_float32=True)
        nbytes = 20_480 * 2**20 + 2**17

        assert [printed.error_of(nbytes + more) for more in (0, 1024, 1536)] == [0, 0, 1536]

    @pytest.mark.parametrize("text", ["", "many", "1,024", "-5", "3 parsecs"])
    def test_other_texts_are_not_quantities(self, text: str) -> None:
        with pytest.raises(InputError):
            parse_quantity(text)

    @pytest.mark.parametrize("text", ["", "peak", "max allocated after step 1", "allocated in"])
    def test_other_texts_are_not_figures(self, text: str) -> None:
        with pytest.raises(NotFigureError):
            parse_figure(text)


class TestCaseFiles:
    def test_rows_inherit_from_the_file(self, tmp_path: Path) -> None:
        case = case_from(tmp_path)

        assert [str(figure) for figure in case.printed] == [
            "max allocated in step 0",
            "max allocated in step 0, variant=plain",
        ]

    @pytest.mark.parametrize(
        ("old", "new", "error"),
        [
            ('source = "fairscale"', "", NotCaseError),
            ('value = "98816"', "value = 98816", NotCaseError),
            ('value = "98816"', 'value = "98816", error = 512', RowGapMismatchError),
            ('value = "98816"', 'value = "98816", gap = "why"', RowGapMismatchError),
            ('gpu = "v100"', 'gpu = "v100"\ngap = "why"', NeedlessGapError),
            ('figure = "max allocated in step 0"', "", NotFigureError),
            ('source = "fairscale"', 'source = "fairscale"\nstart = "setup"', NotCaseError),
        ],
    )
    def test_a_bad_field_is_named(
        self, old: str, new: str, error: type[InputError], tmp_path: Path
    ) -> None:
        with pytest.raises(error):
            case_from(tmp_path, CASE.replace(old, new))


class TestTheSuite:
    def test_equal_figures_are_exit_code_0(self, tmp_path: Path, run_graphmem: Run) -> None:
        """A single case file and no recordings."""
        outcome = run_case(run_graphmem, tmp_path, CASE)

        assert outcome.exit_code == 0
        assert outcome.stdout.splitlines()[1].split() == [
            *("case", "v100-16gb", "1.12", "max", "allocated", "in", "step", "0"),
            *("98,816", "98816", "0"),
            ".".join(torch.__version__.split(".")[:2]),
        ]

    def test_the_release_that_traced_is_named(self, tmp_path: Path, run_graphmem: Run) -> None:
        installed = ".".join(torch.__version__.split(".")[:2])
        of_another = run_case(run_graphmem, tmp_path, CASE)
        of_this = run_case(run_graphmem, tmp_path, CASE.replace('"1.12"', f'"{installed}"'))

        assert of_another.stdout.splitlines()[-1] == (
            f"traced by torch {installed}, the release of 0 of 1 cases; "
            "the others have the card's rules of theirs"
        )
        assert of_this.stdout.splitlines()[-1] == (
            f"traced by torch {installed}, the release of 1 of 1 cases"
        )

    @pytest.mark.parametrize("error", [512, 1024])
    def test_a_known_error_must_occur(self, error: int, tmp_path: Path, run_graphmem: Run) -> None:
        text = CASE.replace('"98816"', f'"98304", error = {error}, gap = "a reason"')

        outcome = run_case(run_graphmem, tmp_path, text, "--format", "json")

        row = json.loads(outcome.stdout)["printed"][0]
        assert (row["error"], row["known_error"], row["gap"]) == (512, error, "a reason")
        assert row["failed"] == (error != 512)
        assert outcome.exit_code == (error != 512)

    def test_a_full_card_is_a_moment_to_compare(self, tmp_path: Path, run_graphmem: Run) -> None:
        """A segment of 2 MiB holds 51 layers of 40,448 + 512 bytes, and 8,192 bytes are left."""
        outcome = run_case(run_graphmem, tmp_path, FULL_CASE, "--format", "json")

        rows = json.loads(outcome.stdout)["printed"]
        assert [row["predicted"] for row in rows] == [51 * 40_960, 8_192]
        assert outcome.exit_code == 0

    def test_a_card_that_never_fills_up_is_an_error(
        self, tmp_path: Path, run_graphmem: Run
    ) -> None:
        outcome = run_case(run_graphmem, tmp_path, FULL_CASE.replace("at 2 MiB", "at 4 MiB"))

        assert outcome.exit_code == 2
        assert "nothing runs out of memory with 4 MiB" in outcome.stderr

    def test_an_unknown_moment_names_the_case(self, tmp_path: Path, run_graphmem: Run) -> None:
        outcome = run_case(run_graphmem, tmp_path, CASE.replace("in step 0", "in step 7"))

        assert outcome.exit_code == 2
        assert "case case: the prediction has no 'step 7'" in outcome.stderr


def run_case(run_graphmem: Run, folder: Path, text: str, *arguments: str) -> Outcome:
    path = folder / "case.toml"
    path.write_text(text)
    return run_graphmem(
        *("verify", "--suite", "--cases", str(path), "--recordings", str(folder)), *arguments
    )


SLOW = {
    *("attention_sweep_written_out", "attention_sweep_softmax", "amp_recipe_t4"),
    "fairscale_offload",
}
"""As are most of Liger's modules; each has a neighbour that is not."""
QUICK = {
    "decoder_xl": 2,
    "t4_preflight": 2,
    "liger_multi_token_attention": 2,
    "liger_cross_entropy": 2,
}
"""How many figures of a long case are quick to test."""


def marked(case: PrintedCase) -> list[Any]:
    is_slow = case.name in SLOW or (case.name.startswith("liger_") and case.name not in QUICK)
    count = QUICK.get(case.name, len(case.printed))
    quick, others = (
        replace(case, printed=each) for each in (case.printed[:count], case.printed[count:])
    )
    tests = [pytest.param(quick, marks=[pytest.mark.slow] * is_slow, id=case.name)]
    if others.printed:
        tests.append(pytest.param(others, marks=pytest.mark.slow, id=f"{case.name}, others"))
    return tests


@pytest.mark.parametrize("case", [test for case in CASES for test in marked(case)])
def test_every_printed_figure_matches_its_case(case: PrintedCase) -> None:
    for row in run_printed(case):
        assert row.error == row.figure.known_error, str(row.figure)


def test_cases_side_by_side_print_the_same_bytes(run_graphmem: Run, tmp_path: Path) -> None:
    """In warm processes, and sequentially in this one."""
    small = [FIXTURES / f"cases/small_{name}.toml" for name in ("one_forward", "two_linears")]
    cases = tmp_path / "cases"
    cases.mkdir()
    for each in small:
        shutil.copy(each, cases)
    for module in FIXTURES.glob("*.py"):
        shutil.copy(module, tmp_path)
    suite = ("verify", "--suite", "--cases", str(cases), "--recordings", str(tmp_path))

    together, alone = (run_graphmem(*suite, "--format", "json", "--jobs", each) for each in "21")

    assert together.exit_code == alone.exit_code == 0
    assert together.stdout == alone.stdout
    assert len(json.loads(together.stdout)["printed"]) > 2
