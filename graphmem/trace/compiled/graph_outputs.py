"""Whether outputs of a compiled code's CUDA graph are still alive.

torch/_inductor/cudagraph_trees.py checks a storage's use count. Here, autograd saves tokens, and
fake memory is recreated when it is used, so the recorder answers instead.
"""

from __future__ import annotations

from typing import Any

import torch

from graphmem.trace.recorder import Recorder
from graphmem.virtual_device.patching import Replacement


def replacements(recorder: Recorder) -> list[Replacement]:
    """The attributes to replace.

    Args:
        recorder: knows who owns a storage.
    """
    from torch._inductor import cudagraph_trees

    wrapper: Any = cudagraph_trees.StorageWeakRefWrapper
    initialise, swap, expired = wrapper.__init__, wrapper.swap_weakref, wrapper.expired

    note = recorder.note_weak_reference

    def initialise_and_note(self: Any, inp: Any, extra_ref_check: Any = None) -> None:
        initialise(self, inp, extra_ref_check)
        is_tensor = isinstance(inp, torch.Tensor)
        note(self.ref.cdata, inp.untyped_storage() if is_tensor else inp)

    def swap_and_note(self: Any, cdata: int) -> None:
        swap(self, cdata)
        note(cdata, torch.UntypedStorage._new_with_weak_ptr(cdata))

    def is_expired(self: Any) -> bool:
        recorder.refs.free_outlived()
        return bool(expired(self)) and not _is_kept(recorder, self.ref.cdata)

    use_pool = cudagraph_trees._use_cuda_memory_pool_manager

    def use_pool_of_device(device: int, mem_pool: Any, stream: Any) -> Any:
        return use_pool(torch.device("cuda", device), mem_pool, stream)  # type: ignore[arg-type]

    return [
        (wrapper, "__init__", initialise_and_note),
        (wrapper, "swap_weakref", swap_and_note),
        (wrapper, "expired", is_expired),
        # It calls `torch.device(0)`, which C++ only resolves if there is a card.
        (cudagraph_trees, "_use_cuda_memory_pool_manager", use_pool_of_device),
        # A CPU build's version does nothing.
        (cudagraph_trees, "_set_cached_tensors_enabled", torch._C._set_cached_tensors_enabled),
    ]


def _is_kept(recorder: Recorder, weak: int) -> bool:
    """Whether anything but the fake memory of a weak reference holds its storage."""
    storage = recorder.weak.get(weak)
    if storage is None:
        return False
    itself = torch._C._storage_Use_Count(weak) > 0
    return recorder.is_held_beyond(storage, itself)
