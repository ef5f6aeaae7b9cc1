"""torch's C functions for device memory, answered by `DeviceMemory`.

PyTorch's own Python (torch/cuda/memory.py, torch/accelerator/memory.py) calls them, so
`memory_allocated`, `memory_stats`, `memory_summary`, `_dump_snapshot` and the rest are
PyTorch's. Names, arguments and results are those of torch/csrc/cuda/Module.cpp and
torch/csrc/DeviceAccelerator.cpp.

Not modelled: pluggable allocators, and turning the caching allocator off for tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from graphmem.allocator import EVERYBODYS, CachingAllocator, Statistics
from graphmem.allocator.settings import host_limits
from graphmem.allocator.statistics import POOLS
from graphmem.torch_releases import Difference, installed_release
from graphmem.torch_releases.installed_build import (
    OOM_REJECTIONS_ARE_COUNTED,
    PRIVATE_POOLS_ARE_COUNTED,
)
from graphmem.virtual_device.device_memory import DeviceMemory
from graphmem.virtual_device.live_run import NoLiveRun
from graphmem.virtual_device.messages import MemoryInTraceError, PinnedHistoryError

_NO_LIMIT = -1  # the largest size_t, as Python sees it (`max_split_size`)


def memory_bindings(memory: DeviceMemory) -> dict[str, Callable[..., Any]]:
    """Map names in `torch._C` to the functions that answer them."""
    bindings = _Bindings(memory)
    raw = _RawMemory(memory)
    return {
        "_cuda_memoryStats": bindings.stats,
        "_cuda_resetPeakMemoryStats": bindings.reset_peak,
        "_cuda_resetAccumulatedMemoryStats": bindings.reset_accumulated,
        "_cuda_memorySnapshot": bindings.snapshot,
        "_cuda_emptyCache": memory.empty_cache,
        "_cuda_setMemoryFraction": bindings.set_fraction,
        "_cuda_getMemoryFraction": bindings.fraction,
        "_cuda_record_memory_history": bindings.record_history,
        "_cuda_record_memory_history_legacy": bindings.record_history_legacy,
        "_cuda_isHistoryEnabled": lambda: memory.history.is_recorded,
        "_cuda_setMemoryMetadata": bindings.set_metadata,
        "_cuda_getMemoryMetadata": lambda: memory.history.metadata,
        "_cuda_allocationTraceback": bindings.traceback,
        "_cuda_attach_out_of_memory_observer": memory.observe_out_of_memory,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_cudaCachingAllocator_set_allocator_settings": memory.configure,
        "_cuda_cudaCachingAllocator_raw_alloc": raw.alloc,
        "_cuda_cudaCachingAllocator_raw_delete": raw.delete,
        "_cuda_cudaCachingAllocator_enable": raw.enable,
        "_cuda_cudaCachingAllocator_is_enabled": lambda: raw.is_cached,
        "_accelerator_isAllocatorInitialized": lambda: True,
        "_accelerator_emptyCache": memory.empty_cache,
        "_accelerator_getDeviceStats": bindings.stats,
        "_accelerator_resetPeakStats": bindings.reset_peak,
        "_accelerator_resetAccumulatedStats": bindings.reset_accumulated,
        "_accelerator_getMemoryInfo": bindings.info,
        "_accelerator_setAllocatorSettings": memory.configure,
        "_accelerator_getAllocatorSettings": lambda: memory.conf,
    }


def unanswered_bindings(memory: DeviceMemory) -> dict[str, Callable[..., Any]]:
    """Make memory queries errors in a trace, whose memory is simulated only afterwards.

    Those that reset statistics matter to Inductor's benchmarks, so memory is followed from there.
    A snapshot is taken once it is followed: PyTorch checks the pools of compiled code's graphs by
    one (`slow_path_cudagraph_asserts`).
    """

    def following(reset: Callable[..., Any]) -> Callable[..., Any]:
        def reset_followed(*args: Any) -> None:
            memory.before_use()
            reset(*args)

        return reset_followed

    answers = memory_bindings(memory)

    def snapshot(*args: Any) -> Any:
        is_followed = not isinstance(memory.run, NoLiveRun)
        return answers["_cuda_memorySnapshot"](*args) if is_followed else refuse_to_tell()

    return {
        **dict.fromkeys(answers, refuse_to_tell),
        "_cuda_memorySnapshot": snapshot,
        **{name: answers[name] for name in _OF_TRACES},
        **{name: following(answers[name]) for name in _RESETS},
    }


_OF_TRACES = frozenset(
    {
        "_accelerator_emptyCache",
        "_accelerator_isAllocatorInitialized",
        "_cuda_cudaCachingAllocator_is_enabled",
        "_cuda_cudaCachingAllocator_raw_delete",  # of a block of a pool whose state was set
        "_cuda_emptyCache",
    }
)


_RESETS = frozenset(
    {
        "_accelerator_resetAccumulatedStats",
        "_accelerator_resetPeakStats",
        "_cuda_resetAccumulatedMemoryStats",
        "_cuda_resetPeakMemoryStats",
    }
)


def refuse_to_tell(*args: Any, **kwargs: Any) -> NoReturn:
    """Raise: there is no answer before the end of a trace."""
    raise MemoryInTraceError()


class _Bindings:
    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory

    def _of(self, device: int) -> CachingAllocator:
        """The allocator of a device (`assertValidDevice`); an empty one for other ranks' cards."""
        devices = self._memory.devices
        if not 0 <= device < devices.count:
            raise RuntimeError(f"Invalid device argument {device}: did you call init?")
        return self._memory.settled() if device == devices.own else CachingAllocator()

    def stats(self, device: int) -> dict[str, Any]:
        """`getDeviceStats`, nested as torch/csrc/cuda/Module.cpp lays it out."""
        allocator = self._of(device)
        return {
            "num_alloc_retries": allocator.num_alloc_retries,
            "num_ooms": allocator.num_ooms,
            "max_split_size": allocator.settings.max_split_size or _NO_LIMIT,
            "num_sync_all_streams": allocator.num_sync_all_streams,
            "num_device_alloc": allocator.num_device_alloc,
            "num_device_free": allocator.num_device_free,
            **_counted_since(OOM_REJECTIONS_ARE_COUNTED, "num_oom_rejections", 0),
            **_stat_arrays(allocator),
            **_counted_since(
                PRIVATE_POOLS_ARE_COUNTED,
                "reserved_bytes_by_private_pools",
                {private.id: private.reserved_by_size() for private in allocator.private},
            ),
            "oversize_allocations": allocator.oversize_allocations.as_dict(),
            "oversize_segments": allocator.oversize_segments.as_dict(),
        }

    def reset_peak(self, device: int) -> None:
        self._of(device).reset_peak()

    def reset_accumulated(self, device: int) -> None:
        self._of(device).reset_accumulated()

    def info(self, device: int) -> tuple[int, int]:
        """Free and total bytes, as cudaMemGetInfo; other ranks' cards are as full as this one."""
        self._of(device)
        card = self._memory.settled().device
        return card.free_bytes or 0, card.total_bytes or 0

    def set_fraction(self, fraction: float, device: int) -> None:
        if self._of(device) is self._memory.allocator:
            self._memory.limit(fraction)

    def fraction(self, device: int) -> float:
        self._of(device)
        return self._memory.fraction

    def set_metadata(self, metadata: str) -> None:
        self._memory.run.settle()
        self._memory.history.metadata = metadata

    def traceback(self, address: int) -> list[dict[str, Any]] | None:
        self._memory.run.settle()
        return self._memory.history.traceback_of(address)

    def record_history(
        self,
        enabled: str | None,
        context: str | None,
        stacks: str,
        max_entries: int,
        clear_history: bool = False,
        compile_context: bool = False,
        global_record_annotations: bool = False,
        skip_actions: Any = (),
        record_pinned_host_memory: bool = False,
        record_cuda: bool = True,
    ) -> None:
        """`_record_memory_history` of torch/csrc/cuda/memory_snapshot.cpp.

        The last two parameters came with 2.14.
        """
        if stacks not in ("python", "all"):
            raise RuntimeError("expected stacks to be 'python', or 'all'")
        if record_pinned_host_memory:
            raise PinnedHistoryError()
        if record_cuda:
            self._memory.record_history(
                enabled, context, max_entries, clear=clear_history, skipped=skip_actions
            )

    def record_history_legacy(
        self,
        enabled: bool,
        record_context: bool = True,
        max_entries: int = 1,
        trace_context: bool = False,
        record_context_cpp: bool = False,
        clear_history: bool = False,
        compile_context: bool = False,
        global_record_annotations: bool = False,
        skip_actions: Any = (),
        record_pinned_host_memory: bool = False,
        record_cuda: bool = True,
    ) -> None:
        self.record_history(
            "all" if enabled else None,
            "alloc" if trace_context else "state" if record_context else None,
            "python",
            max_entries,
            clear_history,
            skip_actions=skip_actions,
            record_pinned_host_memory=record_pinned_host_memory,
            record_cuda=record_cuda,
        )

    def snapshot(self, pool: tuple[Any, ...] | None = None) -> dict[str, Any]:
        """`THCPModule_memorySnapshot`: segments, events and settings."""
        allocator, history = self._memory.settled(), self._memory.history
        with_events = pool is None or len(pool) < 3 or bool(pool[2])
        events = history.entries() if with_events else []
        wanted = EVERYBODYS if pool is None else tuple(pool[:2])
        segments: list[dict[str, Any]] = [
            segment
            for segment in allocator.snapshot()
            if wanted in (EVERYBODYS, segment["segment_pool_id"])
        ]
        for segment in segments:
            segment["frames"] = history.frames_of_segment(segment["address"])
            for block in segment["blocks"]:
                block["frames"] = history.frames_at(block["address"])
        history.note("snapshot", 0, allocator.statistics.active_bytes.current, 0)
        return {
            "segments": segments,
            "device_traces": [events],
            "allocator_settings": _settings(allocator, self._memory.conf),
            "external_annotations": [],
        }


class _RawMemory:
    """Memory that a program allocates by address (`caching_allocator_alloc`)."""

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self._uncached: dict[int, int] = {}
        self.is_cached = True

    def enable(self, value: bool) -> None:
        """Turn the cache on or off; without it requests go to cudaMalloc and are not counted."""
        self.is_cached = value

    def alloc(self, size: int, stream: int) -> int:
        if self.is_cached:
            return self._memory.raw_alloc(size, stream)
        device = self._memory.settled().device
        if not device.reserve(size):
            raise RuntimeError("CUDA error: out of memory")
        address = device.place(size)
        self._uncached[address] = size
        return address

    def delete(self, address: int) -> None:
        size = self._uncached.pop(address, None)
        if size is None:
            self._memory.raw_delete(address)
        else:
            device = self._memory.settled().device
            device.give_back(size)
            device.vacate(address)


def _counted_since(difference: Difference, name: str, value: Any) -> dict[str, Any]:
    """The figure if the installed release has it, else nothing."""
    return {name: value} if difference.holds_in(installed_release()) else {}


def _stat_arrays(allocator: CachingAllocator) -> dict[str, dict[str, dict[str, int]]]:
    parts: tuple[Statistics, ...] = (
        allocator.statistics,
        allocator.small.statistics,
        allocator.large.statistics,
    )
    return {
        name: {pool: part.stats()[name].as_dict() for pool, part in zip(POOLS, parts, strict=True)}
        for name in parts[0].stats()
    }


def _settings(allocator: CachingAllocator, conf: str) -> dict[str, Any]:
    settings = allocator.settings
    divisions = settings.roundup_power2_divisions or (0,) * 16
    return {
        "PYTORCH_CUDA_ALLOC_CONF": conf,
        "max_split_size": settings.max_split_size or _NO_LIMIT,
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "expandable_segments": settings.expandable_segments,
        "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False,
        "pinned_use_cuda_host_register": False,
        "roundup_power2_divisions": {str(1 << i): each for i, each in enumerate(divisions)},
        **host_limits(allocator.release),
    }
