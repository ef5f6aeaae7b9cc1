"""Storages that point to memory and own none: their bytes are counted as another's, or nowhere."""

from __future__ import annotations

import torch

from graphmem.graph import Storage
from graphmem.trace.recorder import Recorder

_ELSEWHERE = "elsewhere"
"""The device of such a storage."""


def let_point(recorder: Recorder, memory: torch.UntypedStorage, address: int) -> Storage:
    """Let fake memory stand for the bytes at an address, a storage without memory of its own."""
    storage = recorder.new_bytes(memory.nbytes())
    storage.device = _ELSEWHERE
    recorder.addresses[storage.id] = address
    recorder.stand_for(memory, storage)
    return storage


def let_own(recorder: Recorder, storage: Storage) -> None:
    """Count a storage that has pointed so far."""
    storage.device = str(recorder.device)
    del recorder.addresses[storage.id]


def memory_of(weak: int) -> torch.UntypedStorage | None:
    """The fake memory that a weak reference of C++ refers to; None once it is gone."""
    return torch.UntypedStorage._new_with_weak_ptr(weak)
