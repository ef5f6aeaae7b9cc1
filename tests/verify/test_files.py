"""`graphmem verify` and its input files: recordings, case files, the suite of cases.

The recordings lie beside the repository, or in GRAPHMEM_RECORDINGS.
"""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphmem.errors import InputError
from graphmem.torch_releases import installed_release
from graphmem.torch_releases.manifest import written
from graphmem.verify import RecordedCase, read_case, read_cases, run_suite
from graphmem.verify.cases import default_cases
from graphmem.verify.figures import Figures
from graphmem.verify.messages import GapMismatchError, NoCasesError, NotCaseError, NotMomentError
from graphmem.verify.recording_files import default_folder, find_recording, read_recorded
from tests.conftest import Outcome
from tests.support.hostile_pickle import RunsSomething
from tests.support.places import FIXTURES

FOLDER = default_folder()
NEEDS_RECORDINGS = pytest.mark.skipif(
    not FOLDER.is_dir(), reason=f"no recordings in {FOLDER} (set GRAPHMEM_RECORDINGS)"
)

Run = Callable[..., Outcome]


def compact(events: list[list[Any]], **replay: int) -> bytes:
    known = {"base_alloc": 0, "base_res": 0, **replay}
    return json.dumps({"events": events, "sites": [], "replay": known}).encode()


BAD_FILES = {
    "empty": (b"", "neither a memory snapshot"),
    "foreign text": (b"step,bytes\n1,2\n", "neither a memory snapshot"),
    "foreign json": (b'{"loss": 0.25}', "not a memory recording"),
    "truncated json": (compact([["a", 512, 0]])[:20], "not a memory recording"),
    "truncated gzip": (gzip.compress(bytes(range(256)))[:-20], "truncated gzip"),
    "truncated pickle": (pickle.dumps({"segments": ["a" * 90]})[:-9], "truncated"),
    "hostile pickle": (pickle.dumps(RunsSomething()), "plain data never has"),
    "huge size": (compact([["a", 1 << 60, 0]]), "is out of range"),
    "free of nothing": (compact([["f", 512, 0]]), "event 0 frees memory that is not allocated"),
    "freed twice": (
        compact([["a", 512, 0], ["f", 512, 0], ["f", 512, 0]]),
        "event 2 frees memory that is not allocated",
    ),
    "allocated twice": (
        compact([["a", 512, 0], ["a", 512, 0]]),
        "event 1 allocates a block that is in use",
    ),
    "another size freed": (
        compact([["a", 512, 0], ["f", 1024, 0]]),
        "event 1 frees 1024 bytes where 512 were allocated",
    ),
    "unknown start": (compact([["a", 512, 0]], base_alloc=1 << 30, base_res=1 << 30), "the state"),
}


class TestRecordings:
    @pytest.mark.parametrize("kind", BAD_FILES)
    def test_a_bad_one_is_one_line_and_exit_code_2(
        self, kind: str, tmp_path: Path, run_graphmem: Run
    ) -> None:
        content, message = BAD_FILES[kind]
        path = tmp_path / "bad.events.json"
        path.write_bytes(content)
        output = tmp_path / "table.txt"

        outcome = run_graphmem("verify", "--allocator", str(path), "-o", str(output))

        assert outcome.exit_code == 2
        assert message in outcome.stderr
        assert "Traceback" not in outcome.stderr
        assert not output.exists()

    def test_a_missing_one_is_exit_code_2(self, tmp_path: Path, run_graphmem: Run) -> None:
        outcome = run_graphmem("verify", "--allocator", str(tmp_path / "none.pickle"))

        assert outcome.exit_code == 2
        assert "cannot be read" in outcome.stderr

    def test_a_miss_of_the_allocator_is_exit_code_1(
        self, tmp_path: Path, run_graphmem: Run
    ) -> None:
        """The second block is recorded as overlapping the first."""
        path = tmp_path / "odd.events.json"
        path.write_bytes(compact([["a", 512, 0], ["S", 2 << 20, 9], ["a", 512, 1]]))

        outcome = run_graphmem("verify", "--allocator", str(path), "--format", "json")

        (row,) = json.loads(outcome.stdout)["allocator"]
        assert outcome.exit_code == 1
        assert row["misses"] == 1
        assert row["first_miss"]["what"] == "the recording opened a segment, the model did not"

    def test_a_recording_without_its_start_is_listed_with_the_others(
        self, tmp_path: Path, run_graphmem: Run
    ) -> None:
        told, untold = tmp_path / "told.events.json", tmp_path / "untold.events.json"
        told.write_bytes(compact([["S", 2 << 20, 0], ["a", 512, 1], ["f", 512, 1]]))
        untold.write_bytes(BAD_FILES["unknown start"][0])

        outcome = run_graphmem("verify", "--allocator", str(told), str(untold))

        assert outcome.exit_code == 0
        assert "untold.events.json: does not have the state" in outcome.stdout

    @NEEDS_RECORDINGS
    @pytest.mark.slow  # test_recordings.py replays each
    def test_every_recording_with_its_start_has_no_miss(self, run_graphmem: Run) -> None:
        files = [str(path) for path in sorted(FOLDER.glob("*.events.json"))]

        outcome = run_graphmem("verify", "--allocator", *files, "--format", "json")

        rows = json.loads(outcome.stdout)["allocator"]
        assert outcome.exit_code == 0
        assert len(rows) == len(files)
        assert sum(row["replayed"] for row in rows) >= 29

    def test_the_table_says_where_a_snapshot_supplies_the_start(
        self, tmp_path: Path, run_graphmem: Run
    ) -> None:
        """A compact file with a block allocated before it begins does not contain its start."""
        path = tmp_path / "x.events.json"
        path.write_bytes(compact([["f", 512, 0]], base_alloc=1 << 30, base_res=1 << 30))
        empty = pickle.dumps({"segments": [], "device_traces": [[]]}, protocol=4)
        (tmp_path / "x.pickle.gz").write_bytes(gzip.compress(empty))

        outcome = run_graphmem("verify", "--allocator", "--format", "json", str(path))

        [row] = json.loads(outcome.stdout)["allocator"]
        assert row["recording"] == "x.pickle.gz (for x.events.json)"

    @NEEDS_RECORDINGS
    def test_a_snapshot_supplies_the_start_of_a_compact_file(self) -> None:
        recorded = read_recorded(FOLDER / "cs336med_infer_ctx128.events.json")

        assert recorded.name == (
            "cs336med_infer_ctx128.pickle.gz (for cs336med_infer_ctx128.events.json)"
        )
        assert recorded.replay is not None
        assert recorded.replay.base_allocated == 1_703_276_544


def test_a_compact_file_may_state_only_the_figures_of_its_start(
    tmp_path: Path,
) -> None:
    path = tmp_path / "untold.events.json"
    known = {"base_alloc": 1024, "base_res": 1 << 30, "peak_alloc": 1536, "end_alloc": 1536}
    path.write_bytes(compact([["a", 512, 0]], **known, peak_reserved=1 << 30, end_reserved=1 << 30))

    recorded = read_recorded(path)

    assert recorded.replay is None
    assert recorded.figures == Figures(1024, 1536, 1536, 1 << 30, 1 << 30)


def test_a_block_freed_first_was_there_at_the_start(tmp_path: Path) -> None:
    blocks = [{"address": 4096, "size": 2 << 20, "requested_size": 0, "state": "inactive"}]
    segment = {"device": 0, "address": 4096, "total_size": 2 << 20, "stream": 0, "blocks": blocks}
    trace = [
        {"action": action, "addr": 4096, "size": 1024, "stream": 0, "frames": []}
        for action in ("free_requested", "free_completed")
    ]
    path = tmp_path / "run.pickle"
    snapshot = {"segments": [segment | {"segment_type": "small"}], "device_traces": [trace]}
    path.write_bytes(pickle.dumps(snapshot))

    figures = read_recorded(path).figures

    assert figures == Figures(1024, 1024, 0, 2 << 20, 2 << 20)


GOOD_CASE = """
recording = "run"
target = "../model.py:build"
start = "step 1"
gpu = "h100"
torch = "2.9"
expect = "exact"
settings = { width = 64, bias = false, rate = 0.5, name = "x" }
"""


def case_from(folder: Path, text: str) -> RecordedCase:
    path = folder / "case.toml"
    path.write_text(text)
    case = read_case(path)
    assert isinstance(case, RecordedCase)
    return case


class TestCaseFiles:
    def test_every_field_arrives(self, tmp_path: Path) -> None:
        case = case_from(tmp_path, GOOD_CASE)

        assert (case.name, case.recording, str(case.start)) == ("case", "run", "step 1")
        assert case.target == f"{tmp_path}/../model.py:build"
        assert case.request.settings == {
            "width": "64",
            "bias": "false",
            "rate": "0.5",
            "name": "x",
        }

    @pytest.mark.parametrize(
        ("old", "new", "error"),
        [
            ('gpu = "h100"', "", NotCaseError),
            ('gpu = "h100"', "gpu = 100", NotCaseError),
            ('start = "step 1"', 'start = "later"', NotMomentError),
            ('torch = "2.9"', 'torch = "2.9"\nlaptop = true', NotCaseError),
            ('expect = "exact"', 'expect = "maybe"', NotCaseError),
            ('expect = "exact"', 'expect = "gap"', GapMismatchError),
            ('expect = "exact"', 'expect = "exact"\ngap = "why"', GapMismatchError),
            ('expect = "exact"', "expect = ", NotCaseError),
        ],
    )
    def test_a_bad_field_is_named(
        self, old: str, new: str, error: type[InputError], tmp_path: Path
    ) -> None:
        with pytest.raises(error):
            case_from(tmp_path, GOOD_CASE.replace(old, new))

    def test_a_folder_without_cases_is_rejected(self, tmp_path: Path) -> None:
        with pytest.raises(NoCasesError):
            read_cases(tmp_path)

    def test_all_case_files_of_the_repository_are_valid(self) -> None:
        cases = read_cases(default_cases())

        assert {"ckpt01", "mlp01", "lm100_train", "mha_lm128_infer"} <= {c.name for c in cases}
        for case in cases:
            assert Path(case.target.rpartition(":")[0]).is_file()


QUICK_CASES = [
    case
    for case in read_cases(default_cases())
    if isinstance(case, RecordedCase) and not case.name.startswith("cs336")
]
"""The others take half a minute each to trace; `graphmem verify --suite` runs them."""
SLOW_CASES = ("lm100_train", "lm200_fwd")
"""lm100_fwd and lm200_train_bf16 have their operations."""


class TestSuite:
    @NEEDS_RECORDINGS
    @pytest.mark.parametrize(
        "case",
        [
            pytest.param(each, marks=[pytest.mark.slow] * (each.name in SLOW_CASES), id=each.name)
            for each in QUICK_CASES
        ],
    )
    def test_each_case_matches_its_file(self, case: RecordedCase) -> None:
        (row,) = run_suite([case], FOLDER).recorded

        assert row.comparison is not None
        assert row.comparison.is_equal == (not case.gap), "equal, or a gap that is noted"

    @NEEDS_RECORDINGS
    def test_an_unexpected_difference_is_exit_code_1(
        self, tmp_path: Path, run_graphmem: Run
    ) -> None:
        """ckpt02 has workspaces, the case of ckpt01 has none."""
        recording = find_recording(FOLDER, "ckpt02_mlp3_plain_ws16_8")
        assert recording is not None
        shutil.copy(recording, tmp_path / "ckpt01_mlp3_plain.events.json")

        outcome = run_one_case(run_graphmem, tmp_path, "--format", "json")

        (row,) = json.loads(outcome.stdout)["suite"]
        assert outcome.exit_code == 1
        assert row["failed"]
        assert row["comparison"]["first_mismatch"]["recorded"]["nbytes"] == 131_072

    @NEEDS_RECORDINGS
    def test_the_table_names_case_machine_and_figures(
        self, tmp_path: Path, run_graphmem: Run
    ) -> None:
        recording = find_recording(FOLDER, "ckpt01_mlp3_plain")
        assert recording is not None
        shutil.copy(recording, tmp_path)

        outcome = run_one_case(run_graphmem, tmp_path)

        row = outcome.stdout.splitlines()[1].split()
        assert outcome.exit_code == 0
        assert row == [
            *("ckpt01", "a100-80gb", "2.6", "23", "none"),
            *("12,261,888", "12,261,888", "0", "23,068,672", "23,068,672", "0"),
            written(installed_release()),
        ]

    def test_a_folder_without_recordings_is_exit_code_2(
        self, tmp_path: Path, run_graphmem: Run
    ) -> None:
        outcome = run_one_case(run_graphmem, tmp_path)

        assert outcome.exit_code == 2
        assert "none of the cases' recordings is in" in outcome.stderr
        assert "GRAPHMEM_RECORDINGS" in outcome.stderr


def run_one_case(run_graphmem: Run, recordings: Path, *arguments: str) -> Outcome:
    """The suite of ckpt01 alone."""
    cases = recordings / "cases"
    cases.mkdir()
    text = (default_cases() / "ckpt01.toml").read_text()
    (cases / "ckpt01.toml").write_text(text.replace("../", f"{FIXTURES}/"))
    return run_graphmem(
        *("verify", "--suite", "--cases", str(cases), "--recordings", str(recordings)), *arguments
    )
