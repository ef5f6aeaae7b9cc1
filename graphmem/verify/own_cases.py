"""Recordings that are cases by themselves: they say what they were made from.

`tools/record_cuda.py` writes beside the events which target ran, with which settings, on which card
and release. Such a recording needs no case file. Where a prediction is known to differ, `gaps.toml`
beside it says why: in each table `gap` one cause, and the names of the recordings that have it.
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


class _Told(msgspec.Struct):
    """What `tools/record_cuda.py` writes of a run."""

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
    """The case that a recording is.

    Raises:
        InputError: it does not say what it was made from, or not in a form that can be predicted.
    """
    try:
        told = msgspec.json.decode(unpacked(path), type=_Told)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise NamelessRecordingError(path) from None
    if ":" not in told.target or told.compile not in (None, "default"):
        what = f"a model compiled with {told.compile}" if told.compile else "a script"
        raise UnpredictedRecordingError(path, what)
    request = Request(
        gpu=find_gpu(told.gpu).name,
        torch=".".join(told.torch.split(".")[:2]),
        env=told.environment,
        autocast=told.autocast,
        grads=told.grads,
        steps=told.steps,
        inference=told.inference,
        settings=dict(text.split("=", 1) for text in told.settings),
        compile=True if told.compile else None,
    )
    # How often a benchmark repeats its calls hangs on the clock: the first step is not compared.
    warm = [mark for mark in told.marks if mark.step == 0] if told.compile else []
    return RecordedCase(
        name=path.name.removesuffix(ENDING),
        target=_found(told.target),
        request=request,
        driver=told.platform,
        recording=str(path),
        start=Start(1) if warm else Start(),
        since=warm[-1].allocations + warm[-1].frees if warm else 0,
        gap=known_gaps(path.parent).get(path.name.removesuffix(ENDING), ""),
    )


def _found(target: str) -> str:
    """The target below the working directory, else below the repository."""
    file, _, function = target.rpartition(":")
    here = Path(file)
    return target if here.is_file() else f"{_REPOSITORY / file}:{function}"


def known_gaps(folder: Path) -> dict[str, str]:
    """Why the predictions for a folder's recordings differ, by the names of those that do.

    Raises:
        InputError: its `gaps.toml` is not one.
    """
    path = folder / GAPS
    if not path.is_file():
        return {}
    try:
        gaps = msgspec.toml.decode(path.read_bytes(), type=_Gaps).gap
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise NotGapsError(path, error) from None
    return {name: gap.cause for gap in gaps for name in gap.recordings}
