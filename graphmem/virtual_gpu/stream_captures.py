"""Which streams are being captured into which CUDA graph.

A capture begins on one stream. Another takes part once it waits for an event that was recorded on
one that does (Cross-stream Dependencies and Events, CUDA C++ Programming Guide).
"""

from __future__ import annotations

_NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"


class StreamCaptures:
    """The captures that are underway."""

    def __init__(self) -> None:
        self._graphs: dict[int, object] = {}

    def graph_of(self, stream: int) -> object | None:
        """What a stream is being captured into; None: it does its work at once."""
        return self._graphs.get(stream)

    @property
    def are_underway(self) -> bool:
        """Whether any stream is being captured."""
        return bool(self._graphs)

    def check_idle(self) -> None:
        """The host is to wait for the card, which a capture forbids.

        Raises:
            RuntimeError: as CUDA says it (cudaErrorStreamCaptureUnsupported).
        """
        if self._graphs:
            raise RuntimeError(_NOT_PERMITTED)

    def begin(self, stream: int, graph: object) -> None:
        """A stream takes part in a capture from now on."""
        self._graphs[stream] = graph

    def join(self, stream: int, graph: object | None) -> None:
        """A stream waits for an event of a capture, which may be over."""
        if graph is not None and graph in self._graphs.values():
            self._graphs[stream] = graph

    def end(self, graph: object) -> None:
        """A capture is over, on all its streams."""
        self._graphs = {stream: each for stream, each in self._graphs.items() if each is not graph}
