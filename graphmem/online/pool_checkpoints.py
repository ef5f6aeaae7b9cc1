"""Gives a graph's pool the state that a recording left, while storages point into it.

Before a graph is recorded behind one that was replayed, torch/_inductor/cudagraph_trees.py sets the
pool's state (`_cuda_setCheckpointPoolState`, torch/csrc/cuda/Module.cpp). Its blocks are then in
use again, and belong to the storages that the replays made; a block without one is freed by its
address (`raw_delete`).

`torch.cuda.max_memory_allocated` counts the blocks that PyTorch hands out only to take them back;
the report does not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from graphmem.allocator import Block, PoolId
from graphmem.allocator.checkpoints import PoolState, Restored
from graphmem.graph import Storage
from graphmem.online.online_simulator import OnlineSimulator
from graphmem.online.pointing import let_own, let_point, memory_of


class PoolCheckpoints:
    """Notes the states of pools, and sets them again."""

    def __init__(self, simulator: OnlineSimulator) -> None:
        self._simulator = simulator
        self._memory = simulator.memory
        self._recorder = simulator.recorder

    def note(self, device: int, pool_id: PoolId) -> PoolState:
        """`_cuda_getCheckpointState`."""
        return self._memory.pool_state((pool_id[0], pool_id[1]))

    def set(
        self, device: int, state: PoolState, stale: Sequence[int], owners: Sequence[int] = ()
    ) -> None:
        """`_cuda_setCheckpointPoolState`.

        Args:
            device: the card.
            state: that of a pool.
            stale: weak references to storages whose blocks may be freed.
            owners: weak references to storages that point to blocks of that state.

        Raises:
            RuntimeError: as in C++.
        """
        restored = self._memory.set_pool_state(state)
        owned = self._follow(restored)
        if len(set(stale)) < len(restored.freed.keys() - restored.created.keys()):
            raise RuntimeError(
                "Any stale tensors which are being manually freed must be passed to set checkpoint"
            )
        unowned = {at: block for at, block in restored.created.items() if at not in owned}
        for weak in dict.fromkeys(stale):
            unowned |= self._remove_owner(weak, owned)
        for weak in dict.fromkeys(owners):
            self._add_owner(weak, unowned, restored)
        self._memory.keep_raw(unowned.values())

    def _follow(self, restored: Restored) -> dict[int, Storage]:
        """Let storages that owned blocks own those at the same addresses; returns the storages."""
        owned = {}
        for storage, block in self._simulator.alive():
            if restored.freed.get(block.address) is block:
                owned[block.address] = storage
                self._simulator.lose_block(storage, restored.created.get(block.address))
        return owned

    def _remove_owner(self, weak: int, owned: dict[int, Storage]) -> dict[int, Block]:
        """Let a storage only point to its block (`removeStorageDeleterFns`).

        Returns:
            the block, by its address, if it is in use.
        """
        memory, storage = self._referred(weak)
        address = next((at for at, owner in owned.items() if owner is storage), None)
        if address is None:
            raise RuntimeError("Unexpected deleter function on storage, could not swap function")
        block = self._simulator.block_holding(storage)
        if block is not None:
            self._simulator.lose_block(storage)
        self._recorder.free(storage)
        if memory is not None:
            let_point(self._recorder, memory, address)
        return {} if block is None else {address: block}

    def _add_owner(self, weak: int, unowned: dict[int, Block], restored: Restored) -> None:
        """Give the block to which a storage points to the storage (`addStorageDeleterFns`)."""
        _, storage = self._referred(weak)
        address = self._recorder.addresses.get(storage.id)
        if address in unowned:
            let_own(self._recorder, storage)
            self._simulator.take_block(storage, unowned.pop(address))
        elif self._simulator.block_holding(storage) in restored.created.values():
            raise RuntimeError(" Not expecting deleter function")

    def _referred(self, weak: int) -> tuple[torch.UntypedStorage | None, Storage]:
        """The fake memory of a weak reference, if it is alive, and its storage."""
        memory = memory_of(weak)
        storage = None if memory is None else self._recorder.storage_in(memory)
        return memory, storage or self._recorder.weak[weak]
