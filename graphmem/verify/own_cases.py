"""Recordings that need no case file, because they say what they were made from.

`tools/record_cuda.py` writes the target, the settings, the card and the release into the recording.
If a prediction is known to differ, `gaps.toml` beside it says why: each table `gap` has one cause,
and the names of the recordings that it affects.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from graphmem.allocator.addresses import Driver
from graphmem.analysis import Request
from graphmem.gpus import find_gpu
from graphmem.plain_data import unpacked
from graphmem.verify.cases import RecordedCase
from graphmem.verify.messages import NamelessRecordingError, NotGapsError, UnpredictedRecordingError
from graphmem.verify.window import Start

ENDING = ".events.json.gz"
GAPS = "gaps.toml"
_REPOSITORY = Path(__file__).resolve().parents[2]


class _Mark(msgspec.Struct):
    """A moment of the run: the end of a phase."""

    phase: str
    step: int
    allocations: int
    frees: int


class _Origin(msgspec.Struct):
    """What `tools/record_cuda.py` writes about a run."""

    target: str
    gpu: str
    torch: str
    steps: int = 1
    settings: list[str] = []
    autocast: Literal["fp16", "bf16"] | None = None
    grads: Literal["keep", "none"] = "none"
    inference: bool = False
    compile: str | None = None
    marks: list[_Mark] = []
    platform: Driver = "linux"
    environment: dict[str, str] = {}


class _Gap(msgspec.Struct, forbid_unknown_fields=True):
    cause: str
    recordings: list[str]


class _Gaps(msgspec.Struct, forbid_unknown_fields=True):
    gap: list[_Gap] = []


def own_case(path: Path) -> RecordedCase:
    """Make the case of a recording.

    Raises:
        InputError: it does not say what it was made from, or this cannot be predicted.
    """
    try:
        origin = msgspec.json.decode(unpacked(path), type=_Origin)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise NamelessRecordingError(path) from None
    if ":" not in origin.target or origin.compile not in (None, "default"):
        what = f"a model compiled with {origin.compile}" if origin.compile else "a script"
        raise UnpredictedRecordingError(path, what)
    request = Request(
        gpu=find_gpu(origin.gpu).name,
        torch=".".join(origin.torch.split(".")[:2]),
        env=origin.environment,
        autocast=origin.autocast,
        grads=origin.grads,
        steps=origin.steps,
        inference=origin.inference,
        settings=dict(text.split("=", 1) for text in origin.settings),
        compile=True if origin.compile else None,
    )
    # How often a benchmark repeats its calls depends on time, so the first step is not compared.
    warm = [mark for mark in origin.marks if mark.step == 0] if origin.compile else []
    return RecordedCase(
        name=path.name.removesuffix(ENDING),
        target=_found(origin.target),
        request=request,
        driver=origin.platform,
        recording=str(path),
        start=Start(1) if warm else Start(),
        since=warm[-1].allocations + warm[-1].frees if warm else 0,
        gap=known_gaps(path.parent).get(path.name.removesuffix(ENDING), ""),
    )


def _found(target: str) -> str:
    """The target, relative to the working directory if the file exists, else to the repository."""
    file, _, function = target.rpartition(":")
    here = Path(file)
    return target if here.is_file() else f"{_REPOSITORY / file}:{function}"


def known_gaps(folder: Path) -> dict[str, str]:
    """Why predictions for a folder's recordings differ, by the names of those that do.

    Raises:
        InputError: its `gaps.toml` is malformed.
    """
    path = folder / GAPS
    if not path.is_file():
        return {}
    try:
        gaps = msgspec.toml.decode(path.read_bytes(), type=_Gaps).gap
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise NotGapsError(path, error) from None
    return {name: gap.cause for gap in gaps for name in gap.recordings}
