"""What the host knows to be done on a device that is as slow as can be.

The virtual card's work takes no time, so a block that another stream uses (`record_stream`) is free
again at once. A card keeps it until that stream has got there (`insert_events`, `process_events`,
CUDACachingAllocator.cpp), which the host can only be sure of once it has waited: for the device, a
stream or an event, or for a number. Until then the block counts as reserved, but not as allocated.
On an H200 a rank of FSDP1 that never waits reserved 950 MB for it, where 510 are predicted
(fixtures/cuda/ranks/fsdp1_no_limit.rank1).

Each stream's frees and events are numbered; a stream that waits for an event knows what the event's
stream knew when it was recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Progress = dict[int, int]
"""By stream, the number of what it has reached last."""


@dataclass
class SlowDevice:
    """Follows streams, and the bytes freed while others may still use them.

    Attributes:
        most_late: the most bytes at a time that were freed, and not known to be unused.
    """

    most_late: int = 0
    _last: Progress = field(default_factory=dict)
    _known: dict[int, Progress] = field(default_factory=dict)
    _on_host: Progress = field(default_factory=dict)
    _late: list[tuple[int, Progress]] = field(default_factory=list)
    _late_bytes: int = 0

    def mark(self, stream: int) -> Progress:
        """What a stream will have reached when it has done its work so far."""
        self._last[stream] = self._last.get(stream, 0) + 1
        return {**self._known.get(stream, {}), stream: self._last[stream]}

    def wait(self, stream: int, progress: Progress) -> None:
        """Have a stream wait for what an event marked."""
        _merge(self._known.setdefault(stream, {}), progress)

    def host_waits(self, progress: Progress) -> None:
        """Have the host wait, and take back what is known to be unused now."""
        _merge(self._on_host, progress)
        if self._late:
            still = [each for each in self._late if not self._is_done(each[1])]
            self._late_bytes = sum(nbytes for nbytes, _ in still)
            self._late = still

    def host_waits_for_all(self) -> None:
        """Have the host wait for the device."""
        self.host_waits(dict(self._last))

    def free(self, nbytes: int, users: set[int]) -> None:
        """Free a block that other streams use."""
        progress: Progress = {}
        for user in users:
            _merge(progress, self.mark(user))
        self._late.append((nbytes, progress))
        self._late_bytes += nbytes
        self.most_late = max(self.most_late, self._late_bytes)

    def _is_done(self, progress: Progress) -> bool:
        return all(self._on_host.get(stream, 0) >= number for stream, number in progress.items())


def _merge(into: Progress, other: Progress) -> None:
    for stream, number in other.items():
        into[stream] = max(into.get(stream, 0), number)
