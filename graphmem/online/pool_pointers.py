"""The C++ side of `mode="reduce-overhead"`: storages at an address, and the state of a pool.

torch/_inductor/cudagraph_trees.py runs as it is. A graph's outputs live in its private pool; a
replay makes tensors that point there and own nothing (torch/csrc/cuda/Module.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from graphmem.allocator import PoolId
from graphmem.allocator.checkpoints import PoolState
from graphmem.graph import Storage
from graphmem.online.online_simulator import OnlineSimulator
from graphmem.online.pointing import let_point, memory_of
from graphmem.online.pool_checkpoints import PoolCheckpoints
from graphmem.virtual_device.device_memory import DeviceMemory
from graphmem.virtual_device.patching import Replacement


def replacements(simulator: OnlineSimulator, fake_mode: FakeTensorMode) -> list[Replacement]:
    """The attributes to replace.

    Args:
        simulator: knows the storages, and the device's memory.
        fake_mode: the fake mode of new tensors.
    """
    pointers = _Pointers(simulator, fake_mode)
    checkpoints = PoolCheckpoints(simulator)
    functions: dict[str, Callable[..., Any]] = {
        "_cuda_CUDAAllocator_AllocatorState": PoolState,
        "_construct_storage_from_data_pointer": pointers.storage_at,
        "_construct_CUDA_Tensor_From_Storage_And_Metadata": pointers.tensor_of,
        "_free_And_Remove_DeleterFn": pointers.free,
        "_has_Standard_Deleter": pointers.is_owner,
        "_tensors_data_ptrs_at_indices_equal": _lie_where_they_lay,
        "_set_storage_access_error_msg": pointers.forbid_tensor,
        "_set_storage_data_ptr_access_error_msg": pointers.forbid,
        "_cuda_getCheckpointState": checkpoints.note,
        "_cuda_setCheckpointPoolState": checkpoints.set,
        "_cuda_checkPoolLiveAllocations": lambda device, pool_id, expected: (
            expected == _allocated_in(simulator.memory, pool_id)
        ),
        "_cuda_get_conv_benchmark_empty_cache": lambda: True,
        "_cudnn_set_conv_benchmark_empty_cache": _nothing,
    }
    return [(torch._C, name, function) for name, function in functions.items()]


class _Pointers:
    def __init__(self, simulator: OnlineSimulator, fake_mode: FakeTensorMode) -> None:
        self._simulator = simulator
        self._recorder = simulator.recorder
        self._fake_mode = fake_mode

    def storage_at(self, address: int, device: Any, nbytes: int) -> torch.UntypedStorage:
        """A storage that owns no memory."""
        with torch._C._DisableTorchDispatch():
            memory = torch.UntypedStorage(nbytes, device="meta")
        let_point(self._recorder, memory, address)
        return memory

    def tensor_of(self, metadata: dict[str, Any], memory: Any) -> torch.Tensor:
        """A tensor in a storage."""
        with torch._C._DisableTorchDispatch():
            inner = torch.empty(0, dtype=metadata["dtype"], device="meta")
            inner.set_(memory, metadata["storage_offset"], metadata["size"], metadata["stride"])
            return FakeTensor(self._fake_mode, inner, torch.device(metadata["device"]))

    def free(self, weak: int) -> None:
        """Free a storage's memory, whoever still holds it; it is pointed to from then on."""
        storage = self._recorder.weak.get(weak)
        if storage is None:
            return
        block = self._simulator.block_holding(storage)
        address = self._recorder.addresses.get(storage.id) if block is None else block.address
        memory = memory_of(weak)
        self._recorder.free(storage)
        if memory is not None and address is not None:
            stand_in = let_point(self._recorder, memory, address)
            if storage.id in self._recorder.overwritten:
                self._forbid(stand_in, self._recorder.overwritten[storage.id])

    def forbid_tensor(self, tensor: torch.Tensor, message: str) -> None:
        """Let operations on a tensor's data fail with a message."""
        self._forbid(self._recorder.storage_of(tensor), message)

    def forbid(self, weak: int, message: str) -> None:
        """Let operations on a storage's data fail with a message, whatever stands for it."""
        memory = memory_of(weak)
        self._forbid(self._recorder.weak.get(weak), message)
        self._forbid(None if memory is None else self._recorder.storage_in(memory), message)

    def _forbid(self, storage: Storage | None, message: str) -> None:
        if storage is not None:
            self._recorder.overwritten[storage.id] = message

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


def _nothing(*args: Any) -> None:
    return None
