"""Find the files of recordings, and the one that has the state before the first event."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from graphmem.allocator import AllocatorSettings
from graphmem.errors import InputError
from graphmem.recordings import Recording, read_recording
from graphmem.torch_releases.differences import Release
from graphmem.verify.changes import Change, changes_since, is_change, recorded_changes
from graphmem.verify.figures import (
    Figures,
    counted_figures,
    replayed_figures,
    stored_figures,
)
from graphmem.verify.replay import Replay, replay

COMPACT = ".events.json"
SNAPSHOT = ".pickle.gz"
_REPOSITORY = Path(__file__).resolve().parents[2]


def default_folder() -> Path:
    """The folder of `GRAPHMEM_RECORDINGS`, else `shared/recordings` beside the repository."""
    named = os.environ.get("GRAPHMEM_RECORDINGS")
    return Path(named) if named else _REPOSITORY.parent / "shared" / "recordings"


def find_recording(folder: Path, name: str) -> Path | None:
    """Find the recording with this file or name; the compact file comes before the snapshot."""
    for ending in ("", COMPACT, SNAPSHOT, ".pickle", ".pkl"):
        path = folder / f"{name}{ending}"
        if path.is_file():
            return path
    return None


@dataclass(frozen=True)
class Recorded:
    """A recording that was checked for contradictions.

    Attributes:
        name: the file's name.
        settings: the allocator's configuration at that time.
        changes: its allocations and frees.
        replay: its replay through the allocator's model; None if it lacks the state before its
            first event.
        figures: PyTorch's counters if the file has them, else those of the replay, else those in a
            compact file, else None.
    """

    name: str
    settings: AllocatorSettings
    changes: tuple[Change, ...]
    replay: Replay | None
    figures: Figures | None


def read_recorded(path: Path, since: int = 0, release: Release | None = None) -> Recorded:
    """Read a recording and replay it.

    A compact file that lacks the state before its first event is replaced by the snapshot of the
    same name beside it, and `name` says so.

    Args:
        path: the file.
        since: how many allocations and frees to skip before the comparison.
        release: the version of torch that made it; None: as the file has it.

    Raises:
        InputError: a file cannot be read, or contradicts itself.
    """
    recording = read_recording(path)
    snapshot = path.with_name(path.name.removesuffix(COMPACT) + SNAPSHOT)
    has_start = recording.final is not None or _has_start(recording)
    if not has_start and path.name.endswith(COMPACT) and snapshot.is_file():
        stand_in = read_recording(snapshot)
        recording = replace(stand_in, name=f"{stand_in.name} (for {path.name})")
        has_start = True
    if release is not None:
        recording = replace(recording, release=release)
    made = replay(recording, _index_of(recording, since)) if has_start else None
    base = recording.base_allocated if made is None or since else made.base_allocated
    changes = recorded_changes(recording, starts_empty=base == 0)
    return Recorded(
        name=recording.name,
        settings=recording.settings,
        changes=tuple(changes_since(changes, since)),
        replay=made,
        figures=replayed_figures(made) if made and since else _figures(path, recording, made),
    )


def _index_of(recording: Recording, since: int) -> int:
    """The index of the event before which there are `since` allocations and frees.

    A free counts when it is completed, but its bytes are no longer allocated after its request.
    """
    if not since or not recording.events:
        return 0
    counted = (i for i, event in enumerate(recording.events) if is_change(event))
    index = next(islice(counted, since, None), len(recording.events))
    return index - (recording.events[index - 1].action == "free_requested")


def _figures(path: Path, recording: Recording, made: Replay | None) -> Figures | None:
    if recording.counted is not None:
        return counted_figures(*recording.counted)
    return stored_figures(path) if made is None else replayed_figures(made)


def _has_start(recording: Recording) -> bool:
    """Whether `replay` can derive the state before the first event of a compact file."""
    try:
        replay(replace(recording, events=()))
    except InputError:
        return False
    return True
