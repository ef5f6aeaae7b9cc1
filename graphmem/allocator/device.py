"""The part of a GPU that the allocator sees: addresses and the amount of memory."""

from __future__ import annotations

from graphmem.allocator.addresses import DEFAULT_DRIVER, Driver, address_space
from graphmem.allocator.settings import MIB

_FIRST_ADDRESS = 0x7F_0000_0000_00  # only the order of addresses matters
_PAGE = 2 * MIB
_UNBOUNDED_ROOM = 1 << 40  # the address range of an expandable segment when capacity is unknown


class Device:
    """Answers cudaMalloc and cuMemMap: whether there is room, and where."""

    def __init__(
        self,
        capacity_bytes: int | None = None,
        context_bytes: int = 0,
        driver: Driver = DEFAULT_DRIVER,
        first_address: int = _FIRST_ADDRESS,
    ) -> None:
        """Make an empty device.

        Args:
            capacity_bytes: what PyTorch's allocator can use; None: unlimited.
            context_bytes: what else the process uses (context, kernels, library handles).
            driver: determines the order of addresses.
            first_address: the lowest address of any range.
        """
        self.capacity_bytes = capacity_bytes
        self.context_bytes = context_bytes
        self.reserved_bytes = 0
        self._driver = driver
        self._first_address = first_address
        self._addresses = address_space(driver, first_address)

    def grow_context(self, context_bytes: int) -> None:
        """Raise the process's other memory, such as its context, to this many bytes."""
        if self.capacity_bytes is not None:
            self.capacity_bytes -= context_bytes - self.context_bytes
            self.context_bytes = context_bytes

    @property
    def total_bytes(self) -> int | None:
        """The device's memory as cudaMemGetInfo reports it; None: unlimited."""
        return None if self.capacity_bytes is None else self.capacity_bytes + self.context_bytes

    @property
    def process_bytes(self) -> int:
        """The process's memory on the device."""
        return self.reserved_bytes + self.context_bytes

    @property
    def free_bytes(self) -> int | None:
        """The memory that the driver has left; None: unlimited."""
        return None if self.capacity_bytes is None else self.capacity_bytes - self.reserved_bytes

    @property
    def address_room(self) -> int:
        """The address range of an expandable segment: 1 1/8 of the device's memory."""
        total = self.total_bytes
        return _UNBOUNDED_ROOM if total is None else total + total // 8

    def reserve(self, size: int) -> bool:
        """Take physical memory; returns False if there is not enough."""
        if self.capacity_bytes is not None and self.reserved_bytes + size > self.capacity_bytes:
            return False
        self.reserved_bytes += size
        return True

    def occupy(self, address: int, size: int) -> None:
        """Register memory that existed before anything was placed; new ranges come after it."""
        self.reserved_bytes += size
        end = address + size + self.address_room
        if end > self._first_address:
            self._first_address = (end + _PAGE - 1) & -_PAGE
            self._addresses = address_space(self._driver, self._first_address)

    def give_back(self, size: int) -> None:
        """Return physical memory."""
        self.reserved_bytes -= size

    def place(self, size: int) -> int:
        """Take a new range of this size; returns its address."""
        return self._addresses.take(size)

    def place_expandable(self, room: int) -> int:
        """Take a new range with room to grow and no memory yet; returns its address."""
        return self.place(room)

    def vacate(self, address: int) -> None:
        """Return the range of addresses placed here; one that existed before is kept."""
        self._addresses.give_back(address)
