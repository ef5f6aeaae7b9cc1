"""Replay recordings through the allocator alone, with their own sizes and order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from graphmem.verify.messages import NoInitialStateError
from graphmem.verify.recording_files import read_recorded
from graphmem.verify.replay import Replay


@dataclass(frozen=True)
class AllocatorCheck:
    """One recording's replay; None if the recording lacks its initial state."""

    name: str
    replay: Replay | None

    @property
    def has_misses(self) -> bool:
        """Whether the model differs from the recording anywhere."""
        return self.replay is not None and self.replay.misses > 0


def check_allocator(paths: Sequence[Path]) -> list[AllocatorCheck]:
    """Replay each recording.

    Raises:
        InputError: a file cannot be read, or no file has the state before its first event.
    """
    checks = []
    for path in paths:
        recorded = read_recorded(path)
        checks.append(AllocatorCheck(recorded.name, recorded.replay))
    if all(check.replay is None for check in checks):
        names = ", ".join(check.name for check in checks)
        raise NoInitialStateError(names)
    return checks
