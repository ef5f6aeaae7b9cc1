"""The allocator's out-of-memory error, in the wording of each version of torch.

Read in libc10_cuda.so of the wheels of torch 2.1.2, 2.2.2, 2.4.1, 2.6.0, 2.8.0, 2.9.1, 2.10.0,
2.11.0, 2.12.0, 2.13.0, 2.14.1 and 2.15.0, and in c10/cuda/CUDACachingAllocator.cpp (`malloc`,
`reportProcessMemoryInfo`). tools/real_allocator ran those since 2.9.1, and 2.12.1 for 2.12.0.

Not covered: other processes on the card. If the driver cannot identify this process (in a container
with its own process ids), PyTorch says "Process 1234 has" instead of "Including non-PyTorch
memory, this process has". Nor, from 2.13 on, the log: a warning for each refusal of the driver.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphmem.errors import GraphmemError
from graphmem.torch_releases.differences import NEWEST_TRIED

LATEST_RELEASE = NEWEST_TRIED

_RIGHTLY_SPELT_SINCE = (2, 2)
_PRIVATE_POOLS_SINCE = (2, 4)  # PR #124673
_ADVICE_NOT_IF_TAKEN_SINCE = (2, 14)  # issue #173049
_RESERVE_EXPLAINED_SINCE = (2, 15)  # PR #192269
_OLD_GUIDE = "https://pytorch.org/docs/stable/notes/cuda.html#environment-variables"
_NEW_GUIDE = (
    "https://docs.pytorch.org/docs/stable/notes/cuda.html"
    "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf"
)
_DO_NOT_SPLIT = (
    "max_split_size_mb to avoid fragmentation."
    "  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
)
_EXPAND = (
    "{variable}=expandable_segments:True to avoid fragmentation."
    "  See documentation for Memory Management  ({guide})"
)

# PyTorch's advice, by the first release that gives it, latest first.
_ADVICE: tuple[tuple[tuple[int, int], str], ...] = (
    ((2, 11), _EXPAND.format(variable="PYTORCH_CUDA_ALLOC_CONF", guide=_NEW_GUIDE)),
    ((2, 10), _EXPAND.format(variable="PYTORCH_ALLOC_CONF", guide=_OLD_GUIDE)),
    ((2, 2), _EXPAND.format(variable="PYTORCH_CUDA_ALLOC_CONF", guide=_OLD_GUIDE)),
    ((0, 0), _DO_NOT_SPLIT),
)
_FEWER_ADDRESSES = (
    " expandable_segments is enabled. If instead the process is running out of virtual address"
    " space (VSZ), expandable segments may be over-reserving VA (each segment reserves ~9/8 of"
    " device memory, times the number of streams); reduce it via PYTORCH_CUDA_ALLOC_CONF"
    " expandable_segments_reserve / expandable_segments_reserve_by_class."
)
_MORE_ADDRESSES = (
    " This allocation exceeds the expandable-segment reserve of {reserve} for this stream, and a"
    " single allocation cannot span expandable segments. Raise PYTORCH_CUDA_ALLOC_CONF"
    " expandable_segments_reserve or expandable_segments_reserve_by_class (or unset it) so that a"
    " segment is at least {tried}."
)


@dataclass(frozen=True, slots=True)
class MemoryState:
    """The figures in PyTorch's message, in bytes.

    Attributes:
        total_bytes: the device's memory, as cudaMemGetInfo reports it.
        free_bytes: what the driver has left.
        process_bytes: this process's memory on the device, including its context.
        allowed_bytes: what a memory fraction allows, or None.
        allocated_bytes: the program's blocks.
        reserved_bytes: the allocator's segments.
        private_bytes: free blocks of private pools; PyTorch calls them allocated.
        expandable_bytes: the addresses of an expandable segment; None: these are off.
    """

    total_bytes: int
    free_bytes: int
    process_bytes: int
    allowed_bytes: int | None
    allocated_bytes: int
    reserved_bytes: int
    private_bytes: int = 0
    expandable_bytes: int | None = None


class OutOfMemory(GraphmemError):  # noqa: N818 - a state of the model, not a fault
    """A request that the device cannot meet even after all cached segments were returned.

    Its text is PyTorch's.

    Attributes:
        requested_bytes: what the program asked for.
        tried_bytes: the segment that the driver refused ("Tried to allocate" in PyTorch).
        stream: the stream of the request.
        state: the state of memory at that moment.
    """

    exit_code = 1
    ONE_EXABYTE = 1 << 60  # larger requests are refused without trying

    def __init__(
        self,
        requested_bytes: int,
        tried_bytes: int,
        stream: int,
        state: MemoryState,
        release: tuple[int, int] = LATEST_RELEASE,
    ) -> None:
        if requested_bytes >= self.ONE_EXABYTE:
            text = "CUDA out of memory. Tried to allocate more than 1EB memory."
        else:
            text = _message(tried_bytes, state, release)
        super().__init__(text)
        self.requested_bytes = requested_bytes
        self.tried_bytes = tried_bytes
        self.stream = stream
        self.state = state


def _message(tried_bytes: int, state: MemoryState, release: tuple[int, int]) -> str:
    capacity = "capacity" if release >= _RIGHTLY_SPELT_SINCE else "capacty"
    limit = state.allowed_bytes
    allowed = "" if limit is None else f"{format_size(limit)} allowed; "
    in_pools = state.private_bytes if release >= _PRIVATE_POOLS_SINCE else 0
    allocated = state.allocated_bytes + in_pools
    unused = format_size(state.reserved_bytes - allocated)
    private = f"with {format_size(in_pools)} allocated in private pools (e.g., CUDA Graphs), "
    return (
        f"CUDA out of memory. Tried to allocate {format_size(tried_bytes)}."
        f" GPU 0 has a total {capacity} of {format_size(state.total_bytes)}"
        f" of which {format_size(state.free_bytes)} is free."
        " Including non-PyTorch memory, this process has"
        f" {format_size(state.process_bytes)} memory in use. {allowed}"
        f"Of the allocated memory {format_size(allocated)} is allocated by PyTorch,"
        f" {private if in_pools else ''}and {unused} is reserved by PyTorch but unallocated."
        f"{_advice(tried_bytes, state, release)}"
    )


def _advice(tried_bytes: int, state: MemoryState, release: tuple[int, int]) -> str:
    reserve = state.expandable_bytes
    if reserve is None or release < _ADVICE_NOT_IF_TAKEN_SINCE:
        advice = next(text for since, text in _ADVICE if release >= since)
        return f" If reserved but unallocated memory is large try setting {advice}"
    if release < _RESERVE_EXPLAINED_SINCE:
        return ""
    if reserve < tried_bytes <= state.total_bytes:
        sizes = format_size(reserve), format_size(tried_bytes)
        return _MORE_ADDRESSES.format(reserve=sizes[0], tried=sizes[1])
    return _FEWER_ADDRESSES


def format_size(size: int) -> str:
    """Bytes as PyTorch prints them in this message (`format_size`)."""
    for limit, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size > limit:
            return f"{size / limit:.2f} {unit}"
    return f"{size} bytes"
