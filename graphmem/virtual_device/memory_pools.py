"""`torch.cuda.MemPool` and the C functions that send requests to a pool.

torch/csrc/cuda/MemPool.cpp and Module.cpp (`beginAllocateCurrentThreadToPool`, `endAllocateToPool`,
`releasePool`). A pool that one thread uses does not get the allocations of autograd's thread.

Not modelled: a pool with a custom allocator.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.cuda.memory

from graphmem.allocator import PoolId
from graphmem.torch_releases import installed_release
from graphmem.torch_releases.installed_build import POOLS_ARE_OF_THREADS
from graphmem.virtual_device.device_memory import DeviceMemory
from graphmem.virtual_device.messages import OldPoolError, PoolAllocatorError
from graphmem.virtual_device.patching import Replacement, replaced, run_again


class PoolHandles:
    """Hands out pool ids (`MemPool::graph_pool_handle`)."""

    def __init__(self) -> None:
        self._of_graphs = itertools.count(1)
        self._of_users = itertools.count(1)

    def of_graph(self) -> PoolId:
        """An id for a graph that shares no pool."""
        return next(self._of_graphs), 0

    def of_user(self) -> PoolId:
        """An id for a `MemPool`, or for a pool that graphs share."""
        return 0, next(self._of_users)


def pool_replacements(memory: DeviceMemory, handles: PoolHandles) -> list[Replacement]:
    """List the replacements of the classes and functions of memory pools."""
    bases: list[Replacement] = [
        (torch._C, "_MemPool", _pool_base(memory, handles)),
        *((torch._C, name, function) for name, function in _functions(memory).items()),
    ]
    if not POOLS_ARE_OF_THREADS.holds_in(installed_release()):
        return [*bases, (torch.cuda.MemPool, "__new__", staticmethod(_refused))]
    with replaced(bases):
        own = run_again(torch.cuda.memory)
    return [
        *bases,
        *(
            (module, name, getattr(own, name))
            for module in (torch.cuda, torch.cuda.memory)
            for name in ("MemPool", "use_mem_pool")
        ),
    ]


def _functions(memory: DeviceMemory) -> dict[str, Callable[..., Any]]:

    def begin_of_thread(device: int, pool_id: PoolId) -> None:
        thread = memory.thread
        memory.begin_pool(pool_id, lambda stream: memory.thread == thread)

    def begin_of_stream(device: int, pool_id: PoolId) -> None:
        current = memory.current_stream
        memory.begin_pool(pool_id, lambda stream: stream == current)

    def end(device: int, pool_id: PoolId) -> None:
        memory.end_pool(pool_id)

    return {
        "_cuda_beginAllocateCurrentThreadToPool": begin_of_thread,
        "_cuda_beginAllocateToPool": lambda device, pool_id: memory.begin_pool(
            pool_id, lambda stream: True
        ),
        "_cuda_endAllocateToPool": end,
        "_cuda_beginAllocateCurrentStreamToPool": begin_of_stream,
        "_cuda_endAllocateCurrentStreamToPool": end,
        "_cuda_releasePool": lambda device, pool_id: memory.release_pool(pool_id),
    }


def _refused(*args: Any, **kwargs: Any) -> NoReturn:
    raise OldPoolError()


def _pool_base(of_memory: DeviceMemory, handles: PoolHandles) -> type:
    class Base(MemPoolBase):
        memory = of_memory
        new_id = staticmethod(handles.of_user)

    return Base


class MemPoolBase:
    """Base class of `torch.cuda.MemPool` (torch/csrc/cuda/MemPool.cpp): a pool until deleted."""

    memory: DeviceMemory
    new_id: Callable[[], PoolId]

    def __init__(
        self,
        allocator: Any = None,
        is_user_created: bool = True,
        use_on_oom: bool = False,
        no_split: bool = False,
    ) -> None:
        if allocator is not None:
            raise PoolAllocatorError()
        self._id = self.new_id()
        self.memory.open_pool(self._id, helps_out=use_on_oom, no_split=no_split)
        weakref.finalize(self, _let_go, self.memory, self._id).atexit = False

    @property
    def id(self) -> PoolId:
        """The pool's id."""
        return self._id

    @property
    def allocator(self) -> None:
        """None: custom allocators are refused."""
        return None

    def use_count(self) -> int:
        """The number of users."""
        pool = self.memory.settled().private.get(self._id)
        return 0 if pool is None else pool.users


def _let_go(memory: DeviceMemory, pool_id: PoolId) -> None:
    """`~MemPool`."""
    memory.release_pool(pool_id)
    memory.empty_cache(pool_id)
