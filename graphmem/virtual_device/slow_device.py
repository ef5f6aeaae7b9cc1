"""What the host knows to be done on a device that is as slow as can be.

The virtual card's work takes no time, so a block that another stream uses (`record_stream`) is free
again at once. A card keeps it until that stream has got there (`insert_events`, `process_events`,
CUDACachingAllocator.cpp), which the host can only be sure of once it has waited: for the device, a
stream or an event, or for a number. Until then the block counts as reserved, but not as allocated.
On an H200 a rank of FSDP1 that never waits reserved 950 MB for it, where 510 are predicted
(fixtures/cuda/ranks/fsdp1_no_limit.rank1).

Each stream's frees and events are numbered; a stream that waits for an event knows what the event's
stream knew when it was recorded. So what the host waits for tells of each stream how far it is.

Streams of NCCL have numbers below zero. They do nothing but messages, each with an event, so a
block that is freed after the last of them waits for that one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

Progress = dict[int, int]
"""By stream, the number of what it has reached last."""


@dataclass(slots=True)
class _Late:
    """A block that was freed, and how many streams may still use it."""

    nbytes: int
    users: int


@dataclass
class SlowDevice:
    """Follows streams, and the bytes freed while others may still use them.

    Attributes:
        most_late: the most bytes at a time that were freed, and not known to be unused.
    """

    most_late: int = 0
    _last: Progress = field(default_factory=dict)
    _known: dict[int, Progress] = field(default_factory=dict)
    _late: dict[int, deque[tuple[int, _Late]]] = field(default_factory=dict)
    _late_bytes: int = 0

    def mark(self, stream: int) -> Progress:
        """What a stream will have reached when it has done its work so far."""
        self._last[stream] = self._last.get(stream, 0) + 1
        return {**self._known.get(stream, {}), stream: self._last[stream]}

    def wait(self, stream: int, progress: Progress) -> None:
        """Have a stream wait for what an event marked."""
        known = self._known.setdefault(stream, {})
        for other, number in progress.items():
            known[other] = max(known.get(other, 0), number)

    def host_waits(self, progress: Progress) -> None:
        """Have the host wait, and take back what is known to be unused now."""
        for stream, number in progress.items():
            late = self._late.get(stream)
            while late and late[0][0] <= number:
                block = late.popleft()[1]
                block.users -= 1
                if not block.users:
                    self._late_bytes -= block.nbytes

    def host_waits_for_all(self) -> None:
        """Have the host wait for the device."""
        self.host_waits(self._last)

    def free(self, nbytes: int, users: set[int]) -> None:
        """Free a block that other streams use."""
        block = _Late(nbytes, len(users))
        for user in users:
            number = self._last.get(user, 0) if user < 0 else self.mark(user)[user]
            self._late.setdefault(user, deque()).append((number, block))
        self._late_bytes += nbytes
        self.most_late = max(self.most_late, self._late_bytes)
