"""The streams that are being captured into CUDA graphs.

A capture begins on one stream. Another stream joins it by waiting for an event that was recorded on
a captured stream (Cross-stream Dependencies and Events, CUDA C++ Programming Guide).
"""

from __future__ import annotations

from typing import Any, Protocol

_NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"


class Capture(Protocol):
    """A CUDA graph that is being captured."""

    def graph(self) -> Any:
        """The program's object."""

    def draw_random_numbers(self) -> None:
        """Handle a captured operation that draws random numbers."""


class StreamCaptures:
    """The captures in progress."""

    def __init__(self) -> None:
        self._graphs: dict[int, Capture] = {}

    def graph_of(self, stream: int) -> Capture | None:
        """The graph a stream is being captured into; None if it is not being captured."""
        return self._graphs.get(stream)

    def check_idle(self) -> None:
        """Raise if a capture is in progress: the host may not wait for the card then.

        Raises:
            RuntimeError: with CUDA's message (cudaErrorStreamCaptureUnsupported).
        """
        if self._graphs:
            raise RuntimeError(_NOT_PERMITTED)

    def begin(self, stream: int, graph: Capture) -> None:
        """Add a stream to a capture."""
        self._graphs[stream] = graph

    def join(self, stream: int, graph: Capture | None) -> None:
        """Add a stream that waits for an event of a capture, unless the capture is over."""
        if graph is not None and graph in self._graphs.values():
            self._graphs[stream] = graph

    def end(self, graph: Capture) -> None:
        """End a capture on all of its streams."""
        self._graphs = {stream: each for stream, each in self._graphs.items() if each is not graph}
