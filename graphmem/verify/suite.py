"""Run every case of a folder against the recordings of another one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from graphmem.errors import InputError
from graphmem.gpus import Gpu, find_gpu
from graphmem.verify.cases import Case
from graphmem.verify.comparison import Comparison, compare
from graphmem.verify.prediction import predict
from graphmem.verify.recording_files import find_recording, read_recorded


@dataclass(frozen=True)
class SuiteRow:
    """One case and what came of it; `comparison` is None where the recording is not there."""

    case: Case
    comparison: Comparison | None

    @property
    def has_failed(self) -> bool:
        """Whether a case differs that must be equal."""
        return not self.case.gap and self.comparison is not None and not self.comparison.is_equal

    @property
    def gpu(self) -> Gpu:
        """The card."""
        return find_gpu(self.case.request.gpu)


def run_suite(
    cases: Iterable[Case],
    recordings: Path,
    progress: Callable[[str], None] = lambda message: None,
) -> list[SuiteRow]:
    """Compare each case with its recording.

    Args:
        cases: as `read_cases` returns them.
        recordings: the folder of the recordings.
        progress: told what is being done.

    Raises:
        InputError: none of the recordings is there, or a case cannot be predicted.
    """
    rows = []
    for case in cases:
        progress(case.name)
        path = find_recording(recordings, case.recording)
        rows.append(SuiteRow(case, None if path is None else _compare(case, path)))
    if all(row.comparison is None for row in rows):
        raise InputError(
            f"none of the cases' recordings is in {recordings}",
            hint="name their folder with --recordings DIR or GRAPHMEM_RECORDINGS",
        )
    return rows


def _compare(case: Case, path: Path) -> Comparison:
    recorded = read_recorded(path)
    try:
        prediction = predict(case.target, case.request, recorded.settings)
        return compare(recorded, prediction, case.start)
    except InputError as error:
        raise InputError(
            f"case {case.name}: {error}", hint=error.hint, user_traceback=error.user_traceback
        ) from error
