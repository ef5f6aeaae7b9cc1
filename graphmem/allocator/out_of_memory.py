"""What the allocator says when the device is full."""

from __future__ import annotations

from dataclasses import dataclass

from graphmem.errors import GraphmemError


@dataclass(frozen=True, slots=True)
class MemoryState:
    """The figures in PyTorch's message: bytes of the device, of the program, of the cache."""

    capacity_bytes: int
    allowed_bytes: int | None
    free_bytes: int
    allocated_bytes: int
    reserved_bytes: int


class OutOfMemory(GraphmemError):  # noqa: N818 - a state of the model, not a fault
    """A request that the device cannot meet even after all cached segments were given back.

    Attributes:
        requested_bytes: what the program asked for.
        tried_bytes: the segment that the driver refused ("Tried to allocate" in PyTorch).
        stream: the stream of the request.
        state: what the memory held at that moment.
    """

    exit_code = 1

    def __init__(
        self, requested_bytes: int, tried_bytes: int, stream: int, state: MemoryState
    ) -> None:
        unused = state.reserved_bytes - state.allocated_bytes
        limit = state.allowed_bytes
        allowed = "" if limit is None else f"{format_size(limit)} allowed; "
        super().__init__(
            f"CUDA out of memory. Tried to allocate {format_size(tried_bytes)}."
            f" GPU 0 has a total capacity of {format_size(state.capacity_bytes)}"
            f" of which {format_size(state.free_bytes)} is free. {allowed}"
            f"Of the allocated memory {format_size(state.allocated_bytes)} is allocated by PyTorch,"
            f" and {format_size(unused)} is reserved by PyTorch but unallocated."
        )
        self.requested_bytes = requested_bytes
        self.tried_bytes = tried_bytes
        self.stream = stream
        self.state = state


def format_size(size: int) -> str:
    """Bytes as PyTorch prints them in this message (`format_size`)."""
    for limit, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size > limit:
            return f"{size / limit:.2f} {unit}"
    return f"{size} bytes"
