"""The part of a GPU that the allocator sees: addresses, and how much memory there is."""

from __future__ import annotations

from typing import Literal

from graphmem.allocator.settings import MIB

Addresses = Literal["rising", "falling"]
"""Where a driver puts a new segment: above the others, or below them."""

_FIRST_ADDRESS = 0x7F_0000_0000_00  # only the order of addresses means anything
_ALIGNMENT = 2 * MIB
_UNBOUNDED_ROOM = 1 << 40  # the address range of an expandable segment when capacity is unknown


class Device:
    """Answers cudaMalloc and cuMemMap: where, and whether there is room.

    A driver's order of addresses decides only between free blocks of exactly the same size in
    different segments. On Linux it goes down (in recording cs336xl_s_ctx128_fp32_train each of 672
    segments lies 32 MiB below the one before), on Windows up (lm200_train_bf16); what was given
    back is taken again, in an order that is not known.
    """

    def __init__(
        self,
        capacity_bytes: int | None = None,
        context_bytes: int = 0,
        addresses: Addresses = "rising",
    ) -> None:
        """A device that nothing was taken from yet.

        Args:
            capacity_bytes: what PyTorch's allocator can have; None: no end of it.
            context_bytes: what the process takes besides (context, kernels, handles of libraries).
            addresses: where new segments lie.
        """
        self.capacity_bytes = capacity_bytes
        self.context_bytes = context_bytes
        self.reserved_bytes = 0
        self._next_address = _FIRST_ADDRESS
        self._is_falling = addresses == "falling"

    @property
    def total_bytes(self) -> int | None:
        """The device's memory as cudaMemGetInfo tells it, or None when there is no end."""
        return None if self.capacity_bytes is None else self.capacity_bytes + self.context_bytes

    @property
    def process_bytes(self) -> int:
        """What the process has of the device."""
        return self.reserved_bytes + self.context_bytes

    @property
    def free_bytes(self) -> int | None:
        """What the driver would still give, or None when there is no end."""
        return None if self.capacity_bytes is None else self.capacity_bytes - self.reserved_bytes

    @property
    def address_room(self) -> int:
        """The address range of an expandable segment: 1 1/8 of the device's memory."""
        total = self.total_bytes
        return _UNBOUNDED_ROOM if total is None else total + total // 8

    def reserve(self, size: int) -> bool:
        """Take physical memory; False when there is not enough."""
        if self.capacity_bytes is not None and self.reserved_bytes + size > self.capacity_bytes:
            return False
        self.reserved_bytes += size
        return True

    def occupy(self, address: int, size: int) -> None:
        """Book memory that was there before; new ranges come after it."""
        self.reserved_bytes += size
        end = (address + size + _ALIGNMENT - 1) & -_ALIGNMENT
        self._next_address = max(self._next_address, end + self.address_room)

    def give_back(self, size: int) -> None:
        """Return physical memory."""
        self.reserved_bytes -= size

    def place(self, size: int) -> int:
        """The address of a new range of this size."""
        step = (size + _ALIGNMENT - 1) & -_ALIGNMENT
        if self._is_falling:
            self._next_address -= step
            return self._next_address
        address = self._next_address
        self._next_address += step
        return address
