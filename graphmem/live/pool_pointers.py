"""The C++ side of `mode="reduce-overhead"`: storages at an address, and the state of a pool.

torch/_inductor/cudagraph_trees.py runs as it is. A graph's outputs live in its private pool; a
replay makes tensors that point there and own nothing (torch/csrc/cuda/Module.cpp).

Not modelled: recording after a replay in the same step (`_cuda_setCheckpointPoolState`), and the
error for a tensor that a later replay has overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from graphmem.allocator import PoolId
from graphmem.live.messages import MixedGraphTreesError
from graphmem.trace.recorder import Recorder
from graphmem.virtual_device.device_memory import DeviceMemory
from graphmem.virtual_device.patching import Replacement

_ELSEWHERE = "elsewhere"
"""The device of a storage that is counted nowhere: its bytes belong to another."""


def replacements(
    recorder: Recorder, fake_mode: FakeTensorMode, memory: DeviceMemory
) -> list[Replacement]:
    """The attributes to replace.

    Args:
        recorder: maps fake memory to storages.
        fake_mode: the fake mode of new tensors.
        memory: the device's memory.
    """
    pointers = _Pointers(recorder, fake_mode)
    functions: dict[str, Callable[..., Any]] = {
        "_construct_storage_from_data_pointer": pointers.storage_at,
        "_construct_CUDA_Tensor_From_Storage_And_Metadata": pointers.tensor_of,
        "_free_And_Remove_DeleterFn": pointers.free,
        "_has_Standard_Deleter": pointers.is_owner,
        "_tensors_data_ptrs_at_indices_equal": _lie_where_they_lay,
        "_set_storage_access_error_msg": _nothing,
        "_set_storage_data_ptr_access_error_msg": _nothing,
        "_cuda_getCheckpointState": lambda device, pool_id: pool_id,  # it is kept and never read
        "_cuda_setCheckpointPoolState": _record_on,
        "_cuda_checkPoolLiveAllocations": lambda device, pool_id, expected: (
            expected == _allocated_in(memory, pool_id)
        ),
        "_cuda_get_conv_benchmark_empty_cache": lambda: True,
        "_cudnn_set_conv_benchmark_empty_cache": _nothing,
    }
    return [(torch._C, name, function) for name, function in functions.items()]


class _Pointers:
    def __init__(self, recorder: Recorder, fake_mode: FakeTensorMode) -> None:
        self._recorder = recorder
        self._fake_mode = fake_mode

    def storage_at(self, address: int, device: Any, nbytes: int) -> torch.UntypedStorage:
        """A storage that owns no memory."""
        with torch._C._DisableTorchDispatch():
            memory = torch.UntypedStorage(nbytes, device="meta")
        storage = self._recorder.new_bytes(nbytes)
        storage.device = _ELSEWHERE
        self._recorder.addresses[storage.id] = address
        self._recorder.stand_for(memory, storage)
        return memory

    def tensor_of(self, metadata: dict[str, Any], memory: Any) -> torch.Tensor:
        """A tensor in a storage."""
        with torch._C._DisableTorchDispatch():
            inner = torch.empty(0, dtype=metadata["dtype"], device="meta")
            inner.set_(memory, metadata["storage_offset"], metadata["size"], metadata["stride"])
            return FakeTensor(self._fake_mode, inner, torch.device(metadata["device"]))

    def free(self, weak: int) -> None:
        """Free a storage's memory, whoever still holds it."""
        storage = self._recorder.weak.get(weak)
        if storage is not None:
            self._recorder.free(storage)

    def is_owner(self, weak: int) -> bool:
        """Whether the allocator's block dies with the storage."""
        storage = self._recorder.weak.get(weak)
        return storage is not None and storage.device == str(self._recorder.device)


def _lie_where_they_lay(
    tensors: Sequence[Any], addresses: Sequence[int | None], indices: Sequence[int]
) -> bool:
    return all(tensors[index].data_ptr() == addresses[index] for index in indices)


def _allocated_in(memory: DeviceMemory, pool_id: PoolId) -> set[int]:
    return {
        block.address
        for segment in memory.settled().segments()
        if segment.pool_id == tuple(pool_id)
        for block in segment.blocks
        if block.state == "active_allocated"
    }


def _record_on(*args: Any) -> NoReturn:
    raise MixedGraphTreesError()


def _nothing(*args: Any) -> None:
    return None
