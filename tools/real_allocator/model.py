"""graphmem's model of the allocator, asked as the real one is."""

from __future__ import annotations

from graphmem.allocator import AllocatorSettings, Block, CachingAllocator, Device, OutOfMemory
from graphmem.allocator.checkpoints import PoolState, pool_state, set_pool_state
from graphmem.torch_releases.differences import Release
from tools.real_allocator.allocator import RefusedError, Restored


class ModelledAllocator:
    """An `Allocator` (allocator.py)."""

    def __init__(self, settings: AllocatorSettings, device: Device, release: Release) -> None:
        """Make an empty allocator for the rules of a release."""
        self._model = CachingAllocator(settings, device=device, release=release)
        self._model.private.is_capturing = lambda: self._captures
        self._captures = False
        self._blocks: dict[int, Block] = {}
        self._states: list[PoolState] = []

    def malloc(self, size: int, stream: int) -> int:
        """Hand out a block."""
        try:
            block = self._model.malloc(size, stream)
        except OutOfMemory as error:
            raise RefusedError(str(error)) from error
        self._blocks[block.address] = block
        return block.address

    def free(self, address: int) -> None:
        """Take a block back."""
        self._model.free(self._blocks.pop(address))

    def empty_cache(self) -> None:
        """Return unused memory to the driver."""
        self._model.empty_cache()

    def begin_pool(self, number: int) -> None:
        """Send requests to a private pool, on every stream."""
        self._model.private.begin((0, number), lambda stream: True)

    def end_pool(self, number: int) -> None:
        """Stop sending requests there."""
        self._model.private.end((0, number))

    def release_pool(self, number: int) -> None:
        """Take one user off a private pool."""
        self._model.private.release((0, number))

    def checkpoint(self, number: int) -> None:
        """Note the state of a private pool."""
        self._states.append(pool_state(self._model, (0, number)))

    def restore(self, state: int) -> Restored:
        """Give a private pool a state again."""
        try:
            restored = set_pool_state(self._model, self._states[state])
        except RuntimeError as error:
            raise RefusedError(str(error)) from error
        self._model.reset_peak()
        for address in restored.freed:
            del self._blocks[address]
        self._blocks.update(restored.created)
        return Restored(sorted(restored.freed), sorted(restored.created))

    def capture(self, on: int) -> None:
        """Begin or end the capture of a graph."""
        self._captures = bool(on)

    def stats(self) -> dict[str, int]:
        """Every statistic; PyTorch's `memory_stats` nests those of oversize blocks."""
        model = self._model
        oversize = {
            "oversize_allocations": model.oversize_allocations,
            "oversize_segments": model.oversize_segments,
        }
        return {
            **model.memory_stats(),
            "num_sync_all_streams": model.num_sync_all_streams,
            **{
                f"{name}.{metric}": value
                for name, stat in oversize.items()
                for metric, value in stat.as_dict().items()
            },
        }
