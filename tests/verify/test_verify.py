"""`graphmem verify`: recordings that a test makes of a prediction itself, whole and mutated."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphmem.analysis import Request
from graphmem.events import Birth
from graphmem.simulate import life_events
from graphmem.verify import Comparison, Prediction, compare, predict
from graphmem.verify.changes import Change, follow_order
from graphmem.verify.messages import NoStartError, NotMomentError
from graphmem.verify.recording_files import read_recorded
from graphmem.verify.window import Start, parse_start
from tests.conftest import Outcome
from tests.support.places import FIXTURES
from tests.support.sizes import CUBLAS_WORKSPACE

TARGET = f"{FIXTURES / 'recorded_mlp.py'}:build"
REQUEST = Request(torch="2.6", steps=1)
SETUP = Start()

Row = list[Any]
Run = Callable[..., Outcome]


@pytest.fixture(scope="module")
def prediction() -> Prediction:
    return predict(TARGET, REQUEST)


@pytest.fixture(scope="module")
def loop() -> Prediction:
    return predict(f"{FIXTURES / 'recorded_mlp.py'}:build_sgd", Request(torch="2.6", steps=3))


def rows_of(prediction: Prediction) -> list[Row]:
    """The events of a compact recording of what is predicted: each storage has its own ordinal."""
    return [
        ["a" if isinstance(event, Birth) else "f", event.storage.nbytes, event.storage.id]
        for event in life_events(prediction.graph, prediction.programs)
    ]


def written(folder: Path, rows: list[Row], **replay: int) -> Path:
    path = folder / "made.events.json"
    known = {"base_alloc": 0, "base_res": 0, **replay}
    path.write_text(json.dumps({"events": rows, "sites": [], "replay": known}))
    return path


def compared(folder: Path, prediction: Prediction, rows: list[Row]) -> Comparison:
    return compare(read_recorded(written(folder, rows)), prediction, SETUP)


def index_of_free(rows: list[Row]) -> int:
    return next(i for i, row in enumerate(rows) if row[0] == "f")


def freed_beside_a_twin(rows: list[Row]) -> tuple[int, int]:
    """The first free while another allocation of its size is alive, and that one's ordinal."""
    live: dict[int, int] = {}
    for i, (action, nbytes, ordinal) in enumerate(rows):
        if action == "a":
            live[ordinal] = nbytes
            continue
        del live[ordinal]
        twin = next((other for other in live if live[other] == nbytes), None)
        if twin is not None:
            return i, twin
    raise AssertionError("no two allocations of one size are alive at a free")


class TestAPredictionAgainstItself:
    def test_it_is_equal(self, tmp_path: Path, prediction: Prediction) -> None:
        comparison = compared(tmp_path, prediction, rows_of(prediction))

        assert comparison.is_equal
        assert len(comparison.recorded) == len(comparison.predicted) > 0

    def test_another_size_is_found(self, tmp_path: Path, prediction: Prediction) -> None:
        rows = rows_of(prediction)
        rows[0][1] += 512

        comparison = compared(tmp_path, prediction, rows)

        assert comparison.first_difference == 0
        assert comparison.only_recorded == [(1_638_912, 1)]
        assert comparison.only_predicted == [(1_638_400, 1)]

    def test_another_order_is_found(self, tmp_path: Path, prediction: Prediction) -> None:
        rows = rows_of(prediction)
        rows[2], rows[3] = rows[3], rows[2]

        comparison = compared(tmp_path, prediction, rows)

        assert comparison.first_difference == 2
        assert not comparison.only_recorded

    def test_a_missing_free_is_found(self, tmp_path: Path, prediction: Prediction) -> None:
        rows = rows_of(prediction)
        at = index_of_free(rows)
        del rows[at]

        assert compared(tmp_path, prediction, rows).first_difference == at

    def test_the_free_of_a_twin_is_found(self, tmp_path: Path, loop: Prediction) -> None:
        """The wrong one of two live allocations of equal size is freed."""
        rows = rows_of(loop)
        at, twin = freed_beside_a_twin(rows)
        rows[at][2] = twin
        del rows[at + 1 :]

        assert compared(tmp_path, loop, rows).first_difference == at

    def test_an_end_too_early_is_found(self, tmp_path: Path, prediction: Prediction) -> None:
        rows = rows_of(prediction)[:-1]

        assert compared(tmp_path, prediction, rows).first_difference == len(rows)

    def test_equal_events_with_other_figures_differ(
        self, tmp_path: Path, prediction: Prediction
    ) -> None:
        """The same events on a device that already has a small segment."""
        path = written(tmp_path, rows_of(prediction), base_alloc=512, base_res=2 << 20)

        comparison = compare(read_recorded(path), prediction, SETUP)

        assert comparison.first_difference is None
        assert not comparison.is_equal


class TestTheCommand:
    def test_equal_is_exit_code_0(
        self, tmp_path: Path, prediction: Prediction, run_graphmem: Run
    ) -> None:
        path = written(tmp_path, rows_of(prediction))

        outcome = verify(run_graphmem, path)

        assert outcome.exit_code == 0
        assert "every event is equal" in outcome.stdout

    def test_a_difference_names_the_operation_and_the_lines_around(
        self, tmp_path: Path, prediction: Prediction, run_graphmem: Run
    ) -> None:
        rows = rows_of(prediction)
        at = next(i for i, row in enumerate(rows) if row[1] == 32 * 10 * 4)
        rows[at][1] = 1024

        outcome = verify(run_graphmem, written(tmp_path, rows))

        assert outcome.exit_code == 1
        assert f"the first difference is at event {at}" in outcome.stdout
        marked = [line for line in outcome.stdout.splitlines() if line.startswith(">")]
        named = next(line for line in marked if "aten.addmm.default" in line)
        assert named.startswith(f"> {at:>6} +          1,280")

    def test_json_has_the_same_figures(
        self, tmp_path: Path, prediction: Prediction, run_graphmem: Run
    ) -> None:
        output = tmp_path / "report.json"

        outcome = verify(
            run_graphmem,
            written(tmp_path, rows_of(prediction)),
            *("--format", "json", "-o", str(output)),
        )

        report = json.loads(output.read_text())
        assert (outcome.exit_code, outcome.stdout) == (0, "")
        assert report["schema"] == "graphmem.verify/1"
        assert report["comparison"]["equal"]
        assert report["comparison"]["recorded"] == report["comparison"]["predicted"]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((), "verify takes recordings"),
            (("--suite", "--allocator"), "at most one of"),
            (("--suite", "x.json"), "--recordings DIR"),
            (("--allocator",), "at least one"),
            (("--target", TARGET), "one recording"),
            (("x", "y", "--target", TARGET), "one recording"),
            (("x", "--target", TARGET, "--start", "step one"), "not a moment"),
        ],
    )
    def test_invalid_input_is_exit_code_2(
        self, arguments: tuple[str, ...], message: str, run_graphmem: Run
    ) -> None:
        outcome = run_graphmem("verify", *arguments)

        assert outcome.exit_code == 2
        assert message in outcome.stderr


def verify(run_graphmem: Run, path: Path, *arguments: str) -> Outcome:
    return run_graphmem(
        *("verify", str(path), "--target", TARGET, "--torch", "2.6", "--steps", "1"), *arguments
    )


class TestStart:
    @pytest.mark.parametrize("text", ["setup", "step 0", "step 12 backward"])
    def test_it_reads_what_it_writes(self, text: str) -> None:
        assert str(parse_start(text)) == text

    @pytest.mark.parametrize("text", ["", "step", "step -1", "step 1 sideways", "setup 1"])
    def test_other_texts_are_rejected(self, text: str) -> None:
        with pytest.raises(NotMomentError):
            parse_start(text)

    def test_a_later_step_sees_only_its_own_events(self, loop: Prediction) -> None:
        second, third = loop.changes(parse_start("step 1")), loop.changes(parse_start("step 2"))

        assert len(second) == 2 * len(third)
        assert loop.figures(parse_start("step 2")).base_allocated > 2 * CUBLAS_WORKSPACE

    def test_an_untraced_step_is_rejected(self, prediction: Prediction) -> None:
        with pytest.raises(NoStartError):
            prediction.changes(parse_start("step 1"))


class TestFreesInAnyOrder:
    FREES = tuple(Change(False, 512, i, "", in_any_order=True) for i in range(3))

    def test_they_follow_the_recording(self) -> None:
        recorded = [Change(False, 512, i, "") for i in (2, 0, 1)]

        assert [free.allocation for free in follow_order(self.FREES, recorded)] == [2, 0, 1]

    def test_they_stay_if_the_recording_frees_something_else(self) -> None:
        recorded = [Change(False, 512, i, "") for i in (2, 0, 7)]

        assert follow_order(self.FREES, recorded) == list(self.FREES)

    def test_other_frees_keep_their_order(self) -> None:
        strict = [Change(False, 512, i, "") for i in range(3)]

        assert follow_order(strict, strict[::-1]) == strict
