"""Compare every case of a folder with recordings and with the figures that runs printed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby, repeat
from pathlib import Path

from graphmem.errors import InputError
from graphmem.gpus import Gpu, find_gpu
from graphmem.torch_releases import Release, installed_release, parse_release
from graphmem.verify.cases import Case, PrintedCase, RecordedCase
from graphmem.verify.comparison import Comparison, compare
from graphmem.verify.messages import NoRecordingsError
from graphmem.verify.prediction import predict
from graphmem.verify.printed import PrintedFigure
from graphmem.verify.recording_files import find_recording, read_recorded


@dataclass(frozen=True)
class SuiteRow:
    """One case and its result.

    Attributes:
        case: what was to be equal.
        comparison: None if the recording was not found.
        traced_by: the release of torch that traced the case.
    """

    case: RecordedCase
    comparison: Comparison | None
    traced_by: Release = field(default_factory=installed_release)

    @property
    def has_failed(self) -> bool:
        """Whether the case differs although it must be equal."""
        return not self.case.gap and self.comparison is not None and not self.comparison.is_equal

    @property
    def gpu(self) -> Gpu:
        """The card."""
        return find_gpu(self.case.request.gpu)


@dataclass(frozen=True)
class PrintedRow:
    """One figure that a run printed, and the predicted bytes.

    Attributes:
        case: where the figure is from.
        figure: what the run printed.
        predicted: bytes.
        traced_by: the release of torch that traced the case.
    """

    case: PrintedCase
    figure: PrintedFigure
    predicted: int
    traced_by: Release = field(default_factory=installed_release)

    @property
    def error(self) -> int:
        """Predicted minus printed, in bytes; 0 if both would have been printed the same."""
        return self.figure.printed.error_of(self.predicted)

    @property
    def has_failed(self) -> bool:
        """Whether the error differs from the case's known error, for worse or better."""
        return self.error != self.figure.known_error

    @property
    def gpu(self) -> Gpu:
        """The card."""
        return find_gpu(self.case.request.gpu)


Rows = list[SuiteRow | PrintedRow]


@dataclass(frozen=True)
class Suite:
    """The results of all cases: a row for each recording, and one for each printed figure."""

    recorded: tuple[SuiteRow, ...]
    printed: tuple[PrintedRow, ...]

    @property
    def has_failed(self) -> bool:
        """Whether any row has failed."""
        rows: Rows = [*self.recorded, *self.printed]
        return any(row.has_failed for row in rows)


def rows_of(case: Case, recordings: Path) -> Rows:
    """The rows of one case, traced by the installed torch."""
    if isinstance(case, PrintedCase):
        return list(run_printed(case))
    if not isinstance(case, RecordedCase):
        return []
    path = find_recording(recordings, case.recording)
    return [SuiteRow(case, None if path is None else _compare(case, path))]


def run_suite(
    cases: Iterable[Case],
    recordings: Path,
    progress: Callable[[str], None] = lambda message: None,
    executor: Executor | None = None,
    rows: Callable[[Case, Path], Rows] = rows_of,
) -> Suite:
    """Compare each case with its recording, or with its printed figures.

    Args:
        cases: as `read_cases` returns them.
        recordings: the folder of the recordings.
        progress: called with a description of each step.
        executor: runs several cases at a time; default: one after the other, in this process.
        rows: makes the rows of a case.

    Raises:
        InputError: there are no printed figures and no recording was found, or a case cannot be
            predicted.
    """
    cases = list(cases)
    run_all = map if executor is None else executor.map
    results = run_all(rows, cases, repeat(recordings))
    found: Rows = []
    for number, case in enumerate(cases, 1):
        progress(f"{case.name} ({number} of {len(cases)})")
        found += next(results)
    recorded = tuple(row for row in found if isinstance(row, SuiteRow))
    printed = tuple(row for row in found if isinstance(row, PrintedRow))
    if not printed and all(row.comparison is None for row in recorded):
        raise NoRecordingsError(recordings)
    return Suite(recorded, printed)


def run_printed(case: PrintedCase) -> Iterator[PrintedRow]:
    """Predict each figure of a case; neighbours with the same settings share one trace.

    Raises:
        InputError: the case cannot be predicted.
    """
    for settings, figures in groupby(case.printed, lambda figure: figure.settings):
        request = replace(case.request, settings={**case.request.settings, **settings})
        with _named(case):
            prediction = predict(case.target, request, driver=case.driver)
            for figure in figures:
                yield PrintedRow(case, figure, figure.figure.of(prediction))


def _compare(case: RecordedCase, path: Path) -> Comparison:
    torch = case.request.torch
    recorded = read_recorded(path, case.since, None if torch is None else parse_release(torch))
    with _named(case):
        prediction = predict(case.target, case.request, recorded.settings, driver=case.driver)
        return compare(recorded, prediction, case.start)


@contextmanager
def _named(case: Case) -> Iterator[None]:
    """Name the case in errors."""
    try:
        yield
    except InputError as error:
        raise InputError(
            f"case {case.name}: {error}", hint=error.hint, user_traceback=error.user_traceback
        ) from error
