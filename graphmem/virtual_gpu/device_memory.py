"""The memory of the virtual GPU: one allocator, fed while the program runs, and who may ask it.

(1) The live machine feeds it: `malloc` at each birth, `free` at each death, in program order. Where
it feeds late (a kernel's program is known when the operation has ended), it takes `origin()` at the
birth and hands it to `malloc`, so that stream and frames are those of the birth.
(2) Whoever asks calls `settled()` first: the hook `settle` brings the allocator up to date, then
the allocator is handed out.
(3) A block that another stream uses (`record_stream`) stays active after `free` until that stream
has nothing left to do (`synchronize`, or the next `malloc`: work takes no time on a virtual GPU
except what `torch.cuda._sleep` asks for).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from graphmem.allocator import Block, CachingAllocator, OutOfMemory
from graphmem.gpus import Gpu

DEFAULT_STREAM = 0


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a Python stack."""

    filename: str
    line: int
    name: str


@dataclass(frozen=True, slots=True)
class Origin:
    """What an allocation or a free is remembered by: the current stream, the stack if recorded."""

    stream: int = DEFAULT_STREAM
    frames: tuple[Frame, ...] = ()


def _nothing_to_settle() -> None:
    return None


def _no_block(tensor: torch.Tensor) -> Block | None:
    return None


class DeviceMemory:
    """The device's allocator, and what its users must agree on.

    Attributes:
        gpu: the card.
        allocator: PyTorch's, as the card's driver would see it.
        settle: set by the live machine; applies what the program did so far to the allocator.
        block_of: set by the live machine; the block that holds a tensor, or None.
        current_stream: the handle of the stream on which operations run; 0 is the default one.
    """

    def __init__(self, gpu: Gpu, allocator: CachingAllocator) -> None:
        self.gpu = gpu
        self.allocator = allocator
        self.settle: Callable[[], None] = _nothing_to_settle
        self.block_of: Callable[[torch.Tensor], Block | None] = _no_block
        self.current_stream = DEFAULT_STREAM

    def settled(self) -> CachingAllocator:
        """The allocator after everything that the program did so far."""
        self.settle()
        return self.allocator

    def origin(self) -> Origin:
        """What an allocation that happens now is remembered by."""
        return Origin(self.current_stream)

    def malloc(self, requested_bytes: int, origin: Origin | None = None) -> Block:
        """Allocate for the stream of `origin`; default: now.

        Raises:
            torch.OutOfMemoryError: as on the card, with PyTorch's message.
        """
        origin = origin or self.origin()
        try:
            return self.allocator.malloc(requested_bytes, origin.stream)
        except OutOfMemory as error:
            raise torch.OutOfMemoryError(str(error)) from error

    def free(self, block: Block, origin: Origin | None = None) -> None:
        """Give a block back."""
        self.allocator.free(block)

    def note(self, action: str, address: int, size: int, origin: Origin) -> None:
        """Write a line of history, if it is recorded (`torch.cuda.memory._record_memory_history`).

        Args:
            action: as in a snapshot's `device_traces`: alloc, free_requested, free_completed,
                segment_alloc, segment_free, segment_map, segment_unmap, snapshot, oom.
            address: where.
            size: bytes.
            origin: stream and stack.
        """
