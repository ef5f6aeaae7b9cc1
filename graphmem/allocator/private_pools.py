"""Private pools: blocks reserved for one CUDA graph or one `torch.cuda.MemPool`.

Note [Interaction with CUDA graph capture] in c10/cuda/CUDACachingAllocator.cpp. While a capture is
in progress, or a `MemPool` is in use, requests go to its pool, and freed blocks return to that pool
only. Its segments return to the driver once the pool has no users and its blocks are free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from graphmem.allocator.pool import Pool, PoolId
from graphmem.allocator.settings import SMALL_LIMIT
from graphmem.allocator.statistics import POOLS, Stat
from graphmem.torch_releases.differences import (
    NESTED_POOLS_ARE_A_STACK,
    ONLY_CAPTURES_HOLD_MEMORY_BACK,
    Release,
)

Takes = Callable[[int], bool]
"""Whether requests on a stream go to a pool."""


class PrivatePool:
    """One private pool (`PrivatePool`).

    Attributes:
        id: `MempoolId_t`.
        small, large: its free blocks.
        reserved: its memory from the driver.
        users: the number of graphs and `MemPool`s that use it (`use_count`).
        helps_out: whether other requests may use its free blocks on a full device (`use_on_oom`).
    """

    def __init__(self, pool_id: PoolId, small: Pool, large: Pool) -> None:
        """Make a pool beside the shared pools `small` and `large`."""
        self.id = pool_id
        self.reserved = Stat()
        self.small = small.private(pool_id, self.reserved)
        self.large = large.private(pool_id, self.reserved)
        self.users = 1
        self.helps_out = False

    def reserved_by_size(self) -> dict[str, dict[str, int]]:
        """`reserved_bytes_by_private_pools` of `torch.cuda.memory_stats`."""
        stats = self.reserved, self.small.reserved[0], self.large.reserved[0]
        return dict(zip(POOLS, (stat.as_dict() for stat in stats), strict=True))

    def forbid_splits(self) -> None:
        """Hand out whole segments only."""
        self.small.may_split = self.large.may_split = False

    @property
    def free_bytes(self) -> int:
        """The bytes in its free blocks."""
        return sum(block.size for pool in (self.small, self.large) for block in pool.free_blocks())


class PrivatePools:
    """The private pools of one device, and which requests go to which.

    Attributes:
        are_in_use: a capture is in progress, or a `MemPool` in use (`captures_underway`).
        is_capturing: says whether the current stream is being captured into a graph.
    """

    def __init__(self, small: Pool, large: Pool, release: Release) -> None:
        """Start without pools.

        Args:
            small: the shared pool in whose statistics small blocks count.
            large: that of large blocks.
            release: the version of torch whose rules apply.
        """
        self._everybodys = small, large
        self._newest_first = NESTED_POOLS_ARE_A_STACK.holds_in(release)
        self._only_captures = ONLY_CAPTURES_HOLD_MEMORY_BACK.holds_in(release)
        self._pools: dict[PoolId, PrivatePool] = {}
        self._routes: list[tuple[PoolId, Takes]] = []
        self.are_in_use = False
        self.is_capturing: Callable[[], bool] = lambda: False

    @property
    def hold_memory_back(self) -> bool:
        """Whether cached memory and blocks that streams used stay now (`is_capture_context`)."""
        return self.are_in_use and (not self._only_captures or self.is_capturing())

    def __iter__(self) -> Iterator[PrivatePool]:
        return iter(list(self._pools.values()))

    def get(self, pool_id: PoolId) -> PrivatePool | None:
        """The pool with this id, if it exists."""
        return self._pools.get(pool_id)

    def pools(self) -> list[Pool]:
        """The large and the small pools of all private pools."""
        return [each for pool in self for each in (pool.large, pool.small)]

    def helpers(self) -> list[PrivatePool]:
        """The pools that other requests may use when the device is full (`use_on_oom_pools`)."""
        return [pool for pool in self if pool.helps_out]

    def open(
        self, pool_id: PoolId, *, helps_out: bool = False, no_split: bool = False
    ) -> PrivatePool:
        """Add a user to a pool, creating it if necessary (`createOrIncrefPool`).

        Args:
            pool_id: the pool.
            helps_out: let other requests use it on a full device (`setUseOnOOM`).
            no_split: hand out whole segments only (`setNoSplit`).
        """
        pool = self._pools.get(pool_id)
        if pool is None:
            pool = self._pools[pool_id] = PrivatePool(pool_id, *self._everybodys)
        elif pool.users == 0:
            raise RuntimeError("it->second->use_count > 0 INTERNAL ASSERT FAILED")
        else:
            pool.users += 1
        pool.helps_out |= helps_out
        if no_split:
            pool.forbid_splits()
        return pool

    def begin(self, pool_id: PoolId, takes: Takes) -> None:
        """Send requests to a pool from now on (`beginAllocateToPool`).

        Raises:
            RuntimeError: they already go there.
        """
        self.open(pool_id)
        if any(pool_id == other for other, _ in self._routes):
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        self._routes.insert(0 if self._newest_first else len(self._routes), (pool_id, takes))
        self.are_in_use = True

    def end(self, pool_id: PoolId) -> None:
        """Stop sending requests to a pool (`endAllocateToPool`).

        Raises:
            RuntimeError: none go there.
        """
        kept = [route for route in self._routes if route[0] != pool_id]
        if len(kept) == len(self._routes):
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self._routes = kept
        self.are_in_use = bool(kept)

    def release(self, pool_id: PoolId) -> None:
        """Take one user off a pool (`releasePool`)."""
        self._pools[pool_id].users -= 1

    def pool_for(self, stream: int, size: int) -> Pool | None:
        """The private pool that a request goes to, or None for the shared ones (`get_pool`)."""
        for pool_id, takes in self._routes:
            if takes(stream):
                pool = self._pools[pool_id]
                return pool.small if size <= SMALL_LIMIT else pool.large
        return None

    def unused(self) -> list[PrivatePool]:
        """The pools without users (`graph_pools_freeable`)."""
        return [pool for pool in self._pools.values() if pool.users == 0]

    def drop_empty(self) -> None:
        """Drop pools without users and without memory (`release_cached_blocks`)."""
        for pool in self.unused():
            if not pool.reserved.current:
                del self._pools[pool.id]

    def reserved_bytes(self) -> int:
        """The bytes reserved by all private pools."""
        return sum(pool.reserved.current for pool in self)
