"""Errors in recordings, cases and figures, one class per message."""

from __future__ import annotations

from pathlib import Path

from graphmem.errors import InputError


class NoInitialStateError(InputError):
    """Recordings without snapshots lack the state before their first event."""

    def __init__(self, names: str) -> None:
        super().__init__(
            f"{names} does not have the state before its first event.",
            hint="use the snapshot (*.pickle) that it was made from",
        )


class NoSuiteError(InputError):
    """The suite is not part of the package."""

    def __init__(self) -> None:
        super().__init__(
            "the case files of the suite come with graphmem's repository, not with the package",
            hint="run it in a checkout of the repository, or name a folder: --cases DIR "
            "--recordings DIR",
        )


class EnvironmentFailedError(InputError):
    """The environment of another release could not trace a case."""

    def __init__(self, case: str, python: Path, reason: str = "no output") -> None:
        super().__init__(
            f"case {case}: {python} failed: {reason}",
            hint="`make test TORCH=X.Y.Z` makes such an environment; --environments DIR names "
            "another folder, which may have none",
        )


class NoCasesError(InputError):
    """A folder has no case files."""

    def __init__(self, place: Path) -> None:
        super().__init__(f"there are no case files (*.toml) in {place}")


class GapMismatchError(InputError):
    """A case lacks the reason for its gap, or has a reason and no gap."""

    def __init__(self, path: Path) -> None:
        super().__init__(f'{path} needs a `gap` if, and only if, expect = "gap".')


class NeedlessGapError(InputError):
    """A case explains a gap that none of its rows has."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} has a `gap` that no row with an `error` needs.")


class RowGapMismatchError(InputError):
    """A row lacks the reason for its gap, or has a reason and no gap."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} needs a `gap` for a row if, and only if, it has an `error`.")


class UnreadableCaseError(InputError):
    """A case file cannot be read."""

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(f"{path} cannot be read: {reason}.")


class NotCaseError(InputError):
    """A file is not a case."""

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(f"{path} is not a case file: {reason}.")


class UnusableRecordingError(InputError):
    """An event of a recording contradicts those before it."""

    def __init__(self, name: str, index: int, what: str) -> None:
        super().__init__(f"{name} is not a usable recording: event {index} {what}")


class UnpredictedRecordingError(InputError):
    """A recording was made in a way that `verify` does not support."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path} was recorded from {what}, which `verify` does not predict yet")


class NamelessRecordingError(InputError):
    """A recording does not name its target."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} does not say what it was made from",
            hint="name it: graphmem verify RECORDING --target train.py:build",
        )


class NotGapsError(InputError):
    """A file is not a list of gaps."""

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(f"{path} is not a list of gaps: {reason}.")


class NotFigureError(InputError):
    """A string does not name a figure."""

    def __init__(self, text: str, known: str) -> None:
        super().__init__(
            f"{text!r} is not a figure",
            hint=f"write one of {known}, followed by a moment such as `step 1`; or allocated when "
            "full at 78 GiB, unallocated when full at 78 GiB",
        )


class NotPrintedBytesError(InputError):
    """A string is not a number of bytes as PyTorch prints it."""

    def __init__(self, text: str) -> None:
        super().__init__(
            f"{text!r} is not a printed number of bytes", hint="write it like 38912 or 40.00 KiB"
        )


class NothingFailsError(InputError):
    """A figure belongs to an out-of-memory error that does not occur."""

    def __init__(self, room: str) -> None:
        super().__init__(f"nothing runs out of memory with {room}")


class NoFirstStateError(InputError):
    """The state before the first event cannot be derived."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} does not have the state before its first event.")


class BlockOutsideError(InputError):
    """A recording has a block outside of its segments."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} has a block outside of all segments.")


class OverlappingSegmentsError(InputError):
    """A recording has overlapping segments."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} has segments that overlap.")


class SegmentTooSmallError(InputError):
    """A recording has a segment that is smaller than its blocks."""

    def __init__(self, address: int) -> None:
        super().__init__(f"The segment at {address:#x} is smaller than its blocks.")


class NoRecordingsError(InputError):
    """None of the suite's recordings was found."""

    def __init__(self, recordings: Path) -> None:
        super().__init__(
            f"none of the cases' recordings is in {recordings}",
            hint="name their folder with --recordings DIR or GRAPHMEM_RECORDINGS",
        )


class NoStartError(InputError):
    """The prediction does not have the moment to start at."""

    def __init__(self, start: str, steps: int) -> None:
        super().__init__(
            f"the prediction has no {start!r} to start at",
            hint=f"it has {steps} steps, counted from 0; `--steps` traces more",
        )


class NotMomentError(InputError):
    """`--start` cannot be parsed."""

    def __init__(self, text: str) -> None:
        super().__init__(
            f"{text!r} is not a moment to start at",
            hint="setup, step N, or step N forward|backward|optimizer, with N counted from 0",
        )
