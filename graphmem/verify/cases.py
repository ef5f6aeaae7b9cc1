"""Case files: which target, on which machine, reproduces which recording.

A case is a TOML file; its name is the case's name. Paths in it are relative to it. Its fields are
those of `Case`; one that is not known is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from graphmem.analysis import Request
from graphmem.errors import InputError
from graphmem.verify.window import Start, parse_start

_REPOSITORY = Path(__file__).resolve().parents[2]


class _CaseFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The fields of a case file.

    Attributes:
        recording: name of the recording, without the ending of its file.
        target: `model.py:build` that does what was recorded.
        start: where in the prediction the recording starts (graphmem/verify/window.py).
        gpu, torch: the machine, as `graphmem analyze` takes it.
        expect: "exact", or "gap" where the prediction is known to differ.
        gap: why it differs; only with "gap".
        steps, settings, env, autocast, optimizer, grads, inference: options of `graphmem analyze`.
    """

    recording: str
    target: str
    start: str
    gpu: str
    torch: str
    expect: Literal["exact", "gap"]
    gap: str = ""
    steps: int = 1
    settings: dict[str, str | int | float | bool] = {}
    env: dict[str, str] = {}
    autocast: Literal["fp16", "bf16"] | None = None
    optimizer: str | None = None
    grads: Literal["keep", "none"] = "none"
    inference: bool = False


@dataclass(frozen=True)
class Case:
    """A recording and the prediction that should equal it.

    Attributes:
        name: of the case file, without its ending.
        recording: name of the recording, without the ending of its file.
        target: as `graphmem.analyze` takes it.
        start: where in the prediction the recording starts.
        request: the machine and the options.
        gap: why the prediction is known to differ; empty where it must be equal.
    """

    name: str
    recording: str
    target: str
    start: Start
    request: Request
    gap: str


def default_cases() -> Path:
    """The case files of the repository."""
    return _REPOSITORY / "fixtures" / "cases"


def read_cases(folder: Path) -> list[Case]:
    """Every case of a folder, by name.

    Raises:
        InputError: there is none, or one cannot be used.
    """
    paths = sorted(folder.glob("*.toml"))
    if not paths:
        raise InputError(f"there are no case files (*.toml) in {folder}")
    return [read_case(path) for path in paths]


def read_case(path: Path) -> Case:
    """Read one case file.

    Raises:
        InputError: it cannot be read, a field is missing, unknown or of another type.
    """
    try:
        fields = msgspec.toml.decode(path.read_bytes(), type=_CaseFile)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a case file: {error}.") from None
    if (fields.expect == "gap") != bool(fields.gap):
        raise InputError(f'{path} needs a text `gap` with expect = "gap", and only then.')
    request = Request(
        gpu=fields.gpu,
        torch=fields.torch,
        env=fields.env,
        autocast=fields.autocast,
        optimizer=fields.optimizer,
        grads=fields.grads,
        steps=fields.steps,
        inference=fields.inference,
        settings={name: _as_text(value) for name, value in fields.settings.items()},
    )
    return Case(
        name=path.stem,
        recording=fields.recording,
        target=str(path.parent / fields.target),
        start=parse_start(fields.start),
        request=request,
        gap=fields.gap,
    )


def _as_text(value: str | float | bool) -> str:
    """A setting as `--set` would give it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
