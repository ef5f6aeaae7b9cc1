"""The stream on which a backward pass runs each node: that of its forward operation.

`Node::stream` and `call_function` (torch/csrc/autograd/function.h, engine.cpp); the stream that is
current where `backward` is called does not matter. A node that no operation made
(`AccumulateGrad`) runs on the stream that was current when its leaf was first used; here it runs on
the caller's, which is the same unless the program changed streams in between.
"""

from __future__ import annotations

from graphmem.graph import Op
from graphmem.virtual_device.device_memory import DEFAULT_STREAM, DeviceMemory


class NodeStreams:
    """The operations that did not run on the default stream."""

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self._of_op: dict[int, int] = {}
        self._caller: int | None = None

    def note(self, op: Op) -> None:
        """Note that an operation ran on the current stream."""
        stream = self._memory.current_stream
        if stream != DEFAULT_STREAM:
            self._of_op[op.index] = stream

    def enter(self, forward: Op | None, stream: int | None = None) -> None:
        """Switch to the stream of a node that begins.

        Args:
            forward: the operation that made it.
            stream: that of its results, if it is known; its operations may have run on others.
        """
        if self._caller is None:
            self._caller = self._memory.current_stream
        if stream is None:
            stream = self._caller
            if forward is not None:
                stream = self._of_op.get(forward.index, DEFAULT_STREAM)
        self._memory.current_stream = stream

    def leave(self) -> None:
        """Return to the caller's stream: a node has ended."""
        if self._caller is not None:
            self._memory.current_stream, self._caller = self._caller, None
