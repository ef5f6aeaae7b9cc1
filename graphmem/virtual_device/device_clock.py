"""The virtual GPU's time, which decides whether a stream has finished.

Work takes no time, except for `torch.cuda._sleep`; the host's time advances only while it waits for
the device. So whether a block that another stream uses can be taken back does not depend on how
fast graphmem runs.
"""

from __future__ import annotations


class DeviceClock:
    """Virtual milliseconds.

    Attributes:
        now: the host's time.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._busy_until: dict[int, float] = {}

    def queue(self, stream: int, milliseconds: float) -> None:
        """Queue work of this length on a stream."""
        self._busy_until[stream] = self.done_at(stream) + milliseconds

    def done_at(self, stream: int) -> float:
        """When a stream finishes its queued work."""
        return max(self.now, self._busy_until.get(stream, 0.0))

    def delay(self, stream: int, moment: float) -> None:
        """Make a stream wait until a moment, as for an event."""
        self._busy_until[stream] = max(self.done_at(stream), moment)

    def wait_until(self, moment: float) -> None:
        """Make the host wait until a moment."""
        self.now = max(self.now, moment)

    def wait_for_all(self) -> None:
        """Make the host wait for every stream."""
        self.wait_until(max(self._busy_until.values(), default=0.0))
