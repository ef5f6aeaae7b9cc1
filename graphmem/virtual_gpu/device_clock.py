"""The time of the virtual GPU, by which it is known whether a stream has finished.

Work takes no time, except what `torch.cuda._sleep` asks for; the host stands still, except where it
waits for the device. So whether a block that another stream uses can be taken back does not depend
on how fast graphmem runs.
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
        """Give a stream work of this length."""
        self._busy_until[stream] = self.done_at(stream) + milliseconds

    def done_at(self, stream: int) -> float:
        """When a stream has finished all that it was given."""
        return max(self.now, self._busy_until.get(stream, 0.0))

    def delay(self, stream: int, moment: float) -> None:
        """Let a stream wait for a moment, as for an event."""
        self._busy_until[stream] = max(self.done_at(stream), moment)

    def wait_until(self, moment: float) -> None:
        """Let the host wait."""
        self.now = max(self.now, moment)

    def wait_for_all(self) -> None:
        """Let the host wait for every stream."""
        self.wait_until(max(self._busy_until.values(), default=0.0))
