"""Case files: the target and the machine that reproduce a recording or a run's printed figures.

A case is a TOML file; its name is the case's name. Paths in it are relative to it. One with a table
`printed` is compared with printed figures, any other one with a recording. Unknown fields are
errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from graphmem.allocator.addresses import Driver
from graphmem.analysis import Request
from graphmem.verify.messages import (
    GapMismatchError,
    NeedlessGapError,
    NoCasesError,
    NoSuiteError,
    NotCaseError,
    RowGapMismatchError,
    UnreadableCaseError,
)
from graphmem.verify.printed import PrintedFigure, parse_figure, parse_quantity
from graphmem.verify.window import Start, parse_start

REPOSITORY = Path(__file__).resolve().parents[2]
_Settings = dict[str, str | int | float | bool]


class _CaseFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The fields of every case file.

    Attributes:
        target: the `model.py:build` that reproduces the run.
        gpu, torch: the machine, as for `graphmem analyze`.
        gap: why the prediction is known to differ.
        driver: "wddm" if the recording was made under Windows or WSL 2.
        steps, settings, env, autocast, optimizer, grads, inference: options of `graphmem analyze`.
    """

    target: str
    gpu: str
    torch: str
    gap: str = ""
    driver: Driver = "linux"
    steps: int = 1
    settings: _Settings = {}
    env: dict[str, str] = {}
    autocast: Literal["fp16", "bf16"] | None = None
    optimizer: str | None = None
    grads: Literal["keep", "none"] = "none"
    inference: bool = False


class _RecordedFile(_CaseFile, kw_only=True, frozen=True):
    """The fields of a case that is compared with a recording.

    Attributes:
        recording: the recording's name, without the file's suffix.
        start: where in the prediction the recording starts (graphmem/verify/window.py).
        expect: "exact", or "gap" if the prediction is known to differ.
    """

    recording: str
    start: str
    expect: Literal["exact", "gap"]


class _PrintedRow(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """One printed figure.

    Attributes:
        value: as it was printed, with its unit: "38912", "40.00 KiB".
        figure: what was printed (graphmem/verify/printed.py); default: the file's.
        settings: in addition to those of the file.
        error: bytes by which the prediction is known to differ, predicted minus printed.
        gap: why; default: the file's.
    """

    value: str
    figure: str = ""
    settings: _Settings = {}
    error: int = 0
    gap: str = ""


class _PrintedFile(_CaseFile, kw_only=True, frozen=True):
    """The fields of a case that is compared with printed figures.

    Attributes:
        source: where they were published.
        figure: what was printed, for rows that do not say.
        precision: "float32" if the numbers were converted to that type before they were printed.
        printed: the figures.
    """

    source: str
    figure: str = ""
    precision: Literal["digits", "float32"] = "digits"
    printed: tuple[_PrintedRow, ...]


@dataclass(frozen=True)
class Case:
    """A prediction to check.

    Attributes:
        name: the case file's name, without its suffix.
        target: as for `graphmem.analyze`.
        request: the machine and the options.
        driver: decides where new segments lie.
    """

    name: str
    target: str
    request: Request
    driver: Driver


@dataclass(frozen=True)
class RecordedCase(Case):
    """A recording and the prediction that should equal it.

    Attributes:
        recording: the recording's name without the file's suffix, or the file's path.
        start: where in the prediction the recording starts.
        gap: why the prediction is known to differ; empty if it must be equal.
        since: how many allocations and frees of the recording are skipped before the comparison.
    """

    recording: str
    start: Start
    gap: str
    since: int = 0


@dataclass(frozen=True)
class PrintedCase(Case):
    """Figures that a run printed and the prediction that should equal them.

    Attributes:
        source: where they were published.
        printed: the figures.
    """

    source: str
    printed: tuple[PrintedFigure, ...]


def default_cases() -> Path:
    """The folder of the repository's case files."""
    folder = REPOSITORY / "fixtures" / "cases"
    if not folder.is_dir():
        raise NoSuiteError()
    return folder


def read_cases(place: Path) -> list[Case]:
    """Read every case of a folder, by name, or the one case of a file.

    Raises:
        InputError: there is none, or one cannot be used.
    """
    paths = [place] if place.is_file() else sorted(place.glob("*.toml"))
    if not paths:
        raise NoCasesError(place)
    return [read_case(path) for path in paths]


def read_case(path: Path) -> Case:
    """Read one case file.

    Raises:
        InputError: it cannot be read, or a field is missing, unknown or of the wrong type.
    """
    try:
        content = msgspec.toml.decode(path.read_bytes())
        if "printed" in content:
            return _printed_case(path, msgspec.convert(content, _PrintedFile))
        return _recorded_case(path, msgspec.convert(content, _RecordedFile))
    except OSError as error:
        raise UnreadableCaseError(path, error.strerror or error) from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotCaseError(path, error) from None


def _recorded_case(path: Path, fields: _RecordedFile) -> RecordedCase:
    if (fields.expect == "gap") != bool(fields.gap):
        raise GapMismatchError(path)
    return RecordedCase(
        **_common(path, fields),
        recording=fields.recording,
        start=parse_start(fields.start),
        gap=fields.gap,
    )


def _printed_case(path: Path, fields: _PrintedFile) -> PrintedCase:
    if fields.gap and not any(row.error and not row.gap for row in fields.printed):
        raise NeedlessGapError(path)
    return PrintedCase(
        **_common(path, fields),
        source=fields.source,
        printed=tuple(_printed_figure(path, fields, row) for row in fields.printed),
    )


def _printed_figure(path: Path, fields: _PrintedFile, row: _PrintedRow) -> PrintedFigure:
    gap = row.gap or (fields.gap if row.error else "")
    if bool(row.error) != bool(gap):
        raise RowGapMismatchError(path)
    return PrintedFigure(
        figure=parse_figure(row.figure or fields.figure),
        printed=parse_quantity(row.value, is_float32=fields.precision == "float32"),
        settings=_as_texts(row.settings),
        known_error=row.error,
        gap=gap,
    )


def _common(path: Path, fields: _CaseFile) -> dict[str, Any]:
    """The fields of a `Case`."""
    request = Request(
        gpu=fields.gpu,
        torch=fields.torch,
        env=fields.env,
        autocast=fields.autocast,
        optimizer=fields.optimizer,
        grads=fields.grads,
        steps=fields.steps,
        inference=fields.inference,
        settings=_as_texts(fields.settings),
    )
    return {
        "name": path.stem,
        "target": str(path.parent / fields.target),
        "request": request,
        "driver": fields.driver,
    }


def _as_texts(settings: _Settings) -> dict[str, str]:
    """Convert settings to the strings that `--set` would give."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in settings.items()
    }
