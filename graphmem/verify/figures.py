"""The figures that are compared: bytes of a window, as `torch.cuda.memory_stats` counts them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from graphmem.recordings import Counters
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


def replayed_figures(replay: Replay) -> Figures:
    """The figures of a replay."""
    return Figures(
        base_allocated=replay.base_allocated,
        peak_allocated=replay.peak_allocated,
        end_allocated=replay.end_allocated,
        peak_reserved=replay.peak_reserved,
        end_reserved=replay.end_reserved,
    )


def counted_figures(before: Counters, after: Counters) -> Figures:
    """The figures that PyTorch's allocator counted."""
    return Figures(
        base_allocated=before.allocated,
        peak_allocated=after.max_allocated,
        end_allocated=after.allocated,
        peak_reserved=after.max_reserved,
        end_reserved=after.reserved,
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
