"""The streams that are being captured into CUDA graphs.

A capture begins on one stream. Another stream joins it by waiting for an event that was recorded on
a captured stream (Cross-stream Dependencies and Events, CUDA C++ Programming Guide).
"""

from __future__ import annotations

_NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"


class StreamCaptures:
    """The captures in progress."""

    def __init__(self) -> None:
        self._graphs: dict[int, object] = {}

    def graph_of(self, stream: int) -> object | None:
        """The graph a stream is being captured into; None if it is not being captured."""
        return self._graphs.get(stream)

    @property
    def are_underway(self) -> bool:
        """Whether any stream is being captured."""
        return bool(self._graphs)

    def check_idle(self) -> None:
        """Raise if a capture is in progress: the host may not wait for the card then.

        Raises:
            RuntimeError: with CUDA's message (cudaErrorStreamCaptureUnsupported).
        """
        if self._graphs:
            raise RuntimeError(_NOT_PERMITTED)

    def begin(self, stream: int, graph: object) -> None:
        """Add a stream to a capture."""
        self._graphs[stream] = graph

    def join(self, stream: int, graph: object | None) -> None:
        """Add a stream that waits for an event of a capture, unless the capture is over."""
        if graph is not None and graph in self._graphs.values():
            self._graphs[stream] = graph

    def end(self, graph: object) -> None:
        """End a capture on all of its streams."""
        self._graphs = {stream: each for stream, each in self._graphs.items() if each is not graph}
