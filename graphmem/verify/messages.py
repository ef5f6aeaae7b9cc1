"""What can be wrong with what is verified, a class for each message."""

from __future__ import annotations

from pathlib import Path

from graphmem.errors import InputError


class NoInitialStateError(InputError):
    """A recording begins in the middle."""

    def __init__(self, names: str) -> None:
        super().__init__(
            f"{names} does not tell the state before its first event.",
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


class NoCasesError(InputError):
    """A folder has no case files."""

    def __init__(self, place: Path) -> None:
        super().__init__(f"there are no case files (*.toml) in {place}")


class GapMismatchError(InputError):
    """A case explains its gap if it has one, and only then."""

    def __init__(self, path: Path) -> None:
        super().__init__(f'{path} needs a text `gap` with expect = "gap", and only then.')


class NeedlessGapError(InputError):
    """A case explains a gap that none of its rows has."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} has a text `gap` that no row with an `error` needs.")


class RowGapMismatchError(InputError):
    """A row explains its gap if it has one, and only then."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} needs a text `gap` for a row with an `error`, and only then.")


class UnreadableCaseError(InputError):
    """The operating system does not hand a case file out."""

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(f"{path} cannot be read: {reason}.")


class NotCaseError(InputError):
    """A file is no case."""

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(f"{path} is not a case file: {reason}.")


class UnusableRecordingError(InputError):
    """An event of a recording contradicts those before it."""

    def __init__(self, name: str, index: int, what: str) -> None:
        super().__init__(f"{name} is not a usable recording: event {index} {what}")


class UnpredictedRecordingError(InputError):
    """A recording was made in a way that `verify` does not follow."""

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
    """A file is no list of gaps."""

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(f"{path} is not a list of gaps: {reason}.")


class NotFigureError(InputError):
    """A text names no figure."""

    def __init__(self, text: str, known: str) -> None:
        super().__init__(
            f"{text!r} is not a figure",
            hint=f"write one of {known}, then a moment such as `step 1`; or allocated when "
            "full at 78 GiB, unallocated when full at 78 GiB",
        )


class NotPrintedBytesError(InputError):
    """A text is no number of bytes as PyTorch prints it."""

    def __init__(self, text: str) -> None:
        super().__init__(f"{text!r} is not a printed number of bytes", hint="38912 or 40.00 KiB")


class NothingFailsError(InputError):
    """A figure is of an error that does not come."""

    def __init__(self, room: str) -> None:
        super().__init__(f"nothing fails for want of memory with {room}")


class NoStateBeforeError(InputError):
    """A recording without a snapshot begins in the middle."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} does not tell the state before its first event.",
            hint="Use the snapshot (*.pickle) that it was made from.",
        )


class NoFirstStateError(InputError):
    """The state before the first event cannot be worked out."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} does not tell the state before its first event.")


class BlockOutsideError(InputError):
    """A recording contradicts itself."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} has a block outside of all segments.")


class OverlappingSegmentsError(InputError):
    """A recording contradicts itself."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} has segments that overlap.")


class SegmentTooSmallError(InputError):
    """A recording contradicts itself."""

    def __init__(self, address: int) -> None:
        super().__init__(f"The segment at {address:#x} is smaller than its blocks.")


class NoRecordingsError(InputError):
    """None of the suite's recordings is there."""

    def __init__(self, recordings: Path) -> None:
        super().__init__(
            f"none of the cases' recordings is in {recordings}",
            hint="name their folder with --recordings DIR or GRAPHMEM_RECORDINGS",
        )


class NoStartError(InputError):
    """The prediction has no such moment."""

    def __init__(self, start: str, steps: int) -> None:
        super().__init__(
            f"the prediction has no {start!r} to start at",
            hint=f"it has {steps} steps, counted from 0; `--steps` traces more",
        )


class NotMomentError(InputError):
    """`--start` cannot be read."""

    def __init__(self, text: str) -> None:
        super().__init__(
            f"{text!r} is not a moment to start at",
            hint="setup, step N, or step N forward|backward|optimizer, with N counted from 0",
        )
