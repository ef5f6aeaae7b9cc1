"""The figures to compare: bytes in a window, as `torch.cuda.memory_stats` counts them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from graphmem.recordings import Counters
from graphmem.verify.replay import Replay


@dataclass(frozen=True)
class Figures:
    """Bytes before a window, at its end, and at its peak."""

    base_allocated: int
    peak_allocated: int
    end_allocated: int
    peak_reserved: int
    end_reserved: int


class _StoredReplay(msgspec.Struct):
    """The results of replaying the snapshot of a compact file, stored in it (`replay`)."""

    base_alloc: int
    peak_alloc: int
    end_alloc: int
    peak_reserved: int
    end_reserved: int


class _File(msgspec.Struct):
    replay: _StoredReplay


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


def stored_figures(path: Path) -> Figures | None:
    """The figures that a compact file has beside its events, or None."""
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=_File).replay
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return Figures(
        base_allocated=stored.base_alloc,
        peak_allocated=stored.peak_alloc,
        end_allocated=stored.end_alloc,
        peak_reserved=stored.peak_reserved,
        end_reserved=stored.end_reserved,
    )
