"""`storage.resize_(n)`, by which FSDP frees gathered parameters and allocates them again.

No operator runs, so the dispatch mode does not see it. On the card it allocates, then frees the old
memory (`resize_bytes_cuda` in aten/src/ATen/native/cuda/Resize.cpp); to 0 bytes it only frees.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from graphmem.graph import Storage
from graphmem.trace.recorder import Recorder
from graphmem.trace.replaced_storages import ReplacedStorages
from graphmem.virtual_device.patching import Replacement


def replacements(recorder: Recorder, replaced: ReplacedStorages) -> list[Replacement]:
    """The method to replace.

    Args:
        recorder: notes what is allocated and freed.
        replaced: notes which storage has replaced another.
    """
    resize: Any = torch.UntypedStorage.resize_
    emptied: dict[int, tuple[weakref.ref[torch.UntypedStorage], Storage]] = {}

    def resize_and_note(memory: torch.UntypedStorage, size: int) -> Any:
        key = memory._cdata
        old = known = recorder.storage_in(memory)
        empty, before = emptied.get(key, (_nothing, None))
        if old is None and empty() is memory:
            old = before
        result = resize(memory, size)
        if old is not None:
            new = _note_size(recorder, memory, old)
            if new is not None:
                replaced.note(old, new)
        if known is not None and not size:
            emptied[key] = weakref.ref(memory, lambda _: emptied.pop(key, None)), known
        return result

    return [(torch.UntypedStorage, "resize_", resize_and_note)]


def _note_size(recorder: Recorder, memory: torch.UntypedStorage, old: Storage) -> Storage | None:
    """Note that memory was resized; return the storage for which it stands now, if that is new."""
    nbytes = memory.nbytes()
    if recorder.bytes_of(memory) == nbytes:
        return None
    new = recorder.new_bytes(nbytes) if nbytes else None
    if new is not None:
        if new.nbytes == old.nbytes:  # gathered again
            new.shape, new.dtype = old.shape, old.dtype
        recorder.run.note_change(new)
    recorder.stand_for(memory, new)
    recorder.disown(old)  # other views of it have no memory left
    return new


def _nothing() -> None:
    return None
