"""`storage.resize_(n)`, by which FSDP frees gathered parameters and allocates them again.

No operator runs, so the dispatch mode does not see it. On the card it allocates, then frees the old
memory (`resize_bytes_cuda` in aten/src/ATen/native/cuda/Resize.cpp); to 0 bytes it only frees.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from graphmem.trace.recorder import Recorder
from graphmem.virtual_device.patching import Replacement


def replacements(recorder: Recorder) -> list[Replacement]:
    """The method to replace."""
    resize: Any = torch.UntypedStorage.resize_
    emptied: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def resize_and_note(storage: torch.UntypedStorage, size: int) -> Any:
        key = storage._cdata
        known = recorder.storage_in(storage) is not None
        result = resize(storage, size)
        if known or emptied.get(key, _nothing)() is storage:
            _note_size(recorder, storage)
        if known and not size:
            emptied[key] = weakref.ref(storage, lambda _: emptied.pop(key, None))
        return result

    return [(torch.UntypedStorage, "resize_", resize_and_note)]


def _note_size(recorder: Recorder, memory: torch.UntypedStorage) -> None:
    nbytes = memory.nbytes()
    if recorder.bytes_of(memory) == nbytes:
        return
    old = recorder.storage_in(memory)
    new = recorder.new_bytes(nbytes) if nbytes else None
    if new is not None:
        recorder.run.note_change(new)
    recorder.stand_for(memory, new)
    if old is not None:
        recorder.disown(old)  # other views of it have no memory left


def _nothing() -> None:
    return None
