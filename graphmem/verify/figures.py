"""The figures that are compared: bytes of a window, as `torch.cuda.memory_stats` counts them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from graphmem.plain_data import unpacked
from graphmem.verify.replay import Replay


@dataclass(frozen=True)
class Figures:
    """Bytes before a window, at its end, and at most between."""

    base_allocated: int
    peak_allocated: int
    end_allocated: int
    peak_reserved: int
    end_reserved: int


class _Told(msgspec.Struct):
    """What a compact file says that a replay of its snapshot gave (`replay`)."""

    base_alloc: int
    peak_alloc: int
    end_alloc: int
    peak_reserved: int
    end_reserved: int


class _File(msgspec.Struct):
    replay: _Told


class _Mark(msgspec.Struct):
    """What the allocator counted at the end of a phase (`tools/record_cuda.py`)."""

    allocated: int
    reserved: int
    max_allocated: int
    max_reserved: int


class _MarkedFile(msgspec.Struct):
    base: _Mark
    marks: Annotated[list[_Mark], msgspec.Meta(min_length=1)]


def replayed_figures(replay: Replay) -> Figures:
    """The figures of a replay."""
    return Figures(
        base_allocated=replay.base_allocated,
        peak_allocated=replay.peak_allocated,
        end_allocated=replay.end_allocated,
        peak_reserved=replay.peak_reserved,
        end_reserved=replay.end_reserved,
    )


def counted_figures(path: Path) -> Figures | None:
    """The figures that PyTorch's allocator counted; None where a file does not tell them."""
    try:
        told = msgspec.json.decode(unpacked(path), type=_MarkedFile)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    last = told.marks[-1]
    return Figures(
        base_allocated=told.base.allocated,
        peak_allocated=last.max_allocated,
        end_allocated=last.allocated,
        peak_reserved=last.max_reserved,
        end_reserved=last.reserved,
    )


def told_figures(path: Path) -> Figures | None:
    """The figures that a compact file tells beside its events; None where it does not."""
    try:
        told = msgspec.json.decode(path.read_bytes(), type=_File).replay
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return Figures(
        base_allocated=told.base_alloc,
        peak_allocated=told.peak_alloc,
        end_allocated=told.end_alloc,
        peak_reserved=told.peak_reserved,
        end_reserved=told.end_reserved,
    )
