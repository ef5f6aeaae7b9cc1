"""Copies on the host of what a checkpoint saves while training goes on: `async_save`'s staging.

`StateDictStager` copies each storage to the host once, and sets an empty tensor there to show the
copy as the original shows its storage (torch/distributed/checkpoint/_state_dict_stager.py,
`_offload_tensor`, `_stage_untyped_storage`). It takes nothing on the card. A fake tensor's storage
has no data to copy, so the tensor is read instead, as `Tensor.cpu` reads it.

The process that `AsyncCheckpointerType.PROCESS` starts waits for those of the other ranks. A thread
writes the same files from the same copies (`_ThreadBasedAsyncCheckpointExecutor`). On the card
neither takes anything.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.checkpoint import state_dict_saver

from graphmem import constructors
from graphmem.torch_releases import installed_release
from graphmem.torch_releases.installed_build import CHECKPOINTS_HAVE_STAGERS
from graphmem.virtual_device.copies import is_users
from graphmem.virtual_device.patching import Replacement

_KINDS = ("Process", "Thread")


def replacements() -> list[Replacement]:
    """List the attributes to replace."""
    saver: Any = state_dict_saver
    in_process, in_thread = (f"_{kind}BasedAsyncCheckpointExecutor" for kind in _KINDS)
    return [
        *(_staging() if CHECKPOINTS_HAVE_STAGERS.holds_in(installed_release()) else []),
        # before torch 2.7, checkpoints are always saved in a thread
        *([(saver, in_process, getattr(saver, in_thread))] if hasattr(saver, in_process) else []),
    ]


def _staging() -> list[Replacement]:
    from torch.distributed.checkpoint import _state_dict_stager

    stager = _state_dict_stager.StateDictStager
    of_real: Any = stager._offload_tensor

    def offload(self: Any, x: Any, memo: dict[Any, Any], non_blocking: bool = False) -> Any:
        if not isinstance(x, FakeTensor):
            return of_real(self, x, memo, non_blocking=non_blocking)
        made = memo[id(x)] = _on_host(self, x, memo)
        blank = x.detach()
        for name, value in vars(x).items():
            if is_users(name, value, blank):
                copied = self.deepcopy_with_tensor_offload(value, memo, non_blocking=non_blocking)
                setattr(made, name, copied)
        return made

    return [(stager, "_offload_tensor", offload)]


def _on_host(stager: Any, tensor: FakeTensor, memo: dict[Any, Any]) -> torch.Tensor:
    """The tensor on the host, in the copy of its whole storage."""
    memory = tensor.untyped_storage()
    key = "staged", memory._cdata
    if key not in memo:
        count = memory.nbytes() // tensor.element_size()
        memo[key] = tensor.as_strided((count,), (1,), 0).cpu().untyped_storage()
        if stager.pin_memory and memory.nbytes() >= getattr(stager, "pin_memory_min_bytes", 0):
            _pin(memo[key])
    empty = constructors.empty(0, dtype=tensor.dtype, device="cpu")
    return empty.set_(memo[key], tensor.storage_offset(), tensor.size(), tensor.stride())


def _pin(memory: torch.UntypedStorage) -> None:
    from torch.cuda import _pin_memory_utils

    address = memory.data_ptr()
    _pin_memory_utils.pin_memory(address, memory.nbytes())
    weakref.finalize(memory, _pin_memory_utils.unpin_memory, address).atexit = False
