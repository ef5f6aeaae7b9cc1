"""The figures of `torch.cuda.memory_stats` (`DeviceStats` in CachingDeviceAllocator.h)."""

from __future__ import annotations

from collections.abc import Mapping

POOLS = ("all", "small_pool", "large_pool")
"""The parts of each figure in `torch.cuda.memory_stats`."""


class Stat:
    """One figure over time: `current`, `peak`, and the totals `allocated` and `freed`."""

    __slots__ = ("_carried", "allocated", "current", "peak")

    def __init__(self) -> None:
        self.current = 0
        self.peak = 0
        self.allocated = 0
        self._carried = 0  # `current` when `allocated` was last reset

    @property
    def freed(self) -> int:
        """The total that was taken off again."""
        return self._carried + self.allocated - self.current

    def increase(self, amount: int) -> None:
        """Add an amount, and raise the peak to it."""
        self.allocated += amount
        current = self.current + amount
        self.current = current
        if current > self.peak:
            self.peak = current

    def decrease(self, amount: int) -> None:
        """Take an amount off."""
        self.current -= amount

    def reset_peak(self) -> None:
        """Reset the peak to the current value."""
        self.peak = self.current

    def reset_accumulated(self) -> None:
        """Restart the totals at 0."""
        self.allocated = 0
        self._carried = self.current

    def as_dict(self) -> dict[str, int]:
        """The four numbers under PyTorch's names."""
        return {
            "allocated": self.allocated,
            "current": self.current,
            "freed": self.freed,
            "peak": self.peak,
        }

    def __repr__(self) -> str:
        return f"Stat({self.as_dict()})"


class Statistics:
    """The figures of one pool, or of all pools together, under PyTorch's names."""

    __slots__ = (
        "active",
        "active_bytes",
        "allocated_bytes",
        "allocation",
        "inactive_split",
        "inactive_split_bytes",
        "requested_bytes",
        "reserved_bytes",
        "segment",
    )

    def __init__(self) -> None:
        self.allocation = Stat()
        self.segment = Stat()
        self.active = Stat()
        self.inactive_split = Stat()
        self.allocated_bytes = Stat()
        self.reserved_bytes = Stat()
        self.active_bytes = Stat()
        self.inactive_split_bytes = Stat()
        self.requested_bytes = Stat()

    def stats(self) -> dict[str, Stat]:
        """The figures by name."""
        return {name: getattr(self, name) for name in self.__slots__}

    def handed_out(self, size: int, requested: int) -> None:
        """Count a block given to the program."""
        self.allocation.increase(1)
        self.allocated_bytes.increase(size)
        self.active.increase(1)
        self.active_bytes.increase(size)
        self.requested_bytes.increase(requested)

    def given_up(self, size: int) -> None:
        """Count a block that the program freed; a stream may still be using it."""
        self.allocation.decrease(1)
        self.allocated_bytes.decrease(size)

    def taken_back(self, size: int, requested: int) -> None:
        """Count a freed block that returned to its pool."""
        self.active.decrease(1)
        self.active_bytes.decrease(size)
        self.requested_bytes.decrease(requested)

    def splits_changed(self, count: int, size: int) -> None:
        """Count free parts of split segments that came, went, grew or shrank."""
        if count > 0:
            self.inactive_split.increase(count)
        elif count:
            self.inactive_split.decrease(-count)
        if size > 0:
            self.inactive_split_bytes.increase(size)
        elif size:
            self.inactive_split_bytes.decrease(-size)

    def reset_peak(self) -> None:
        """Reset each peak to the current value (`resetPeakStats`)."""
        for stat in self.stats().values():
            stat.reset_peak()

    def reset_accumulated(self) -> None:
        """Restart the totals of each figure at 0 (`resetAccumulatedStats`)."""
        for stat in self.stats().values():
            stat.reset_accumulated()


def flat_stats(parts: Mapping[str, Statistics]) -> dict[str, int]:
    """Flatten figures of several parts to names such as `allocated_bytes.small_pool.peak`."""
    return {
        f"{name}.{part}.{metric}": value
        for part, statistics in parts.items()
        for name, stat in statistics.stats().items()
        for metric, value in stat.as_dict().items()
    }
