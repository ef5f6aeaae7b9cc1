"""Memory that is reserved and free but cannot be given back, and what pins it.

A segment returns to the driver when nothing in it is in use. Free bytes in a segment that is in use
are *pinned*: no other process can have them, and no request larger than the segment's largest free
block can use them. The report shows the worst moment among the beginnings of iterations, the
requests that did not fit, and the end. Segments of `expandable_segments` return single pages, so
they are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from graphmem.allocator import SegmentInfo
from graphmem.graph import OwnerKind, StepGraph, Storage
from graphmem.retention import Retention
from graphmem.units import counted, format_both, format_bytes

LEAST_BYTES = 2 * (20 << 20)
"""Smaller amounts are not reported: blocks of up to 10 MiB share segments of 20 MiB, of which every
program has some to spare (c10/cuda/CUDACachingAllocator.h, `kLargeBuffer`)."""
LEAST_SHARE = 0.1
_LISTED = 5
_IDENTITIES = (
    OwnerKind.PARAMETER,
    OwnerKind.BUFFER,
    OwnerKind.GRADIENT,
    OwnerKind.OPTIMIZER_STATE,
)
"""What a storage is, which says more than a list that holds it as well, as `model.parameters()`."""


@dataclass(frozen=True)
class Pin:
    """The block that keeps a segment from returning to the driver.

    Attributes:
        storages: the storages in it, largest first.
        free_bytes: its free bytes.
        size: its bytes.
    """

    storages: tuple[Storage, ...]
    free_bytes: int
    size: int


class FragmentationWatch:
    """Samples the segments, and reports the worst moment."""

    def __init__(
        self,
        graph: StepGraph,
        holders_of: Callable[[list[int]], dict[int, Retention]],
        reason_for: Callable[[Storage], str],
    ) -> None:
        """Start without samples.

        Args:
            graph: the step graph.
            holders_of: finds the holders of storages, by id, at this moment of the program.
            reason_for: says why a storage is alive that no variable holds.
        """
        self._graph = graph
        self._holders_of = holders_of
        self._reason_for = reason_for
        self._pinned_bytes = 0
        self._reserved_bytes = 0
        self._most_reserved = 0
        self._when = ""
        self._lines: list[str] = []

    def look(
        self, segments: Sequence[SegmentInfo], storage_at: dict[int, Storage], when: str
    ) -> None:
        """Sample the segments at a moment of the program.

        Args:
            segments: the reserved segments.
            storage_at: the live storages, by address.
            when: the moment, in words.
        """
        pins = [pin for each in segments if (pin := _pin(each, storage_at)) is not None]
        pinned_bytes = sum(pin.free_bytes for pin in pins)
        reserved_bytes = sum(each.size for each in segments)
        self._most_reserved = max(self._most_reserved, reserved_bytes)
        if pinned_bytes <= max(self._pinned_bytes, LEAST_BYTES, LEAST_SHARE * reserved_bytes):
            return
        self._pinned_bytes, self._reserved_bytes, self._when = pinned_bytes, reserved_bytes, when
        pins.sort(key=lambda pin: -pin.free_bytes)
        largest = [each for pin in pins for each in pin.storages[:1]]
        held = self._holders_of([each.id for each in largest if not _has_identity(each)])
        by_line: dict[str, list[Pin]] = {}
        for pin in pins:
            by_line.setdefault(self._what_pins(pin, held), []).append(pin)
        self._lines = [_line(what, them) for what, them in list(by_line.items())[:_LISTED]]

    def report_lines(self) -> Iterator[str]:
        """The lines of the report; none of a moment that did not matter to what came later."""
        if self._pinned_bytes > LEAST_SHARE * self._most_reserved:
            yield (
                f"{format_both(self._pinned_bytes)} of the "
                f"{format_bytes(self._reserved_bytes)} reserved {self._when} is free but cannot be "
                "released"
            )
            yield from self._lines

    def _what_pins(self, pin: Pin, held: dict[int, Retention]) -> str:
        if not pin.storages:
            return "memory that the program took without a tensor"
        largest = pin.storages[0]
        op = self._graph.op_of(largest)
        where = "" if op is None or op.source is None else f" made at {op.source}"
        holder = held.get(largest.id)
        why = self._reason_for(largest) if holder is None else f"held by {holder.by}"
        return f"{format_bytes(largest.nbytes)}{where}, {why}"


def _line(what: str, pins: list[Pin]) -> str:
    free_bytes = sum(pin.free_bytes for pin in pins)
    segments = counted(len(pins), "segment")
    each = "each " if len(pins) > 1 else ""
    return f"  {format_both(free_bytes)} free in {segments}, {each}pinned by {what}"


def _pin(segment: SegmentInfo, storage_at: dict[int, Storage]) -> Pin | None:
    free_bytes = sum(block.size for block in segment.blocks if not block.is_active)
    if segment.is_expandable or not free_bytes or free_bytes == segment.size:
        return None
    addresses = [block.address for block in segment.blocks if block.is_active]
    used = [storage_at[address] for address in addresses if address in storage_at]
    used.sort(key=lambda storage: -storage.nbytes)
    return Pin(tuple(used), free_bytes, segment.size)


def _has_identity(storage: Storage) -> bool:
    return any(owner.kind in _IDENTITIES and owner.end is None for owner in storage.owners)
