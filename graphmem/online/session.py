"""A session that knows the stream of each operation."""

from __future__ import annotations

from functools import partial
from typing import Any

from graphmem.online.mode import FollowedMode
from graphmem.online.online_simulator import OnlineSimulator
from graphmem.trace.python_functions import stream_of
from graphmem.trace.session import Session
from graphmem.virtual_device.device_memory import DeviceMemory


class FollowedSession(Session):
    """Watches a program whose memory is followed, or will be once it matters.

    Attributes:
        simulator: keeps the device's memory up to date.
    """

    mode: FollowedMode
    memory: DeviceMemory

    def __init__(
        self,
        simulator: OnlineSimulator,
        *,
        mode: type[FollowedMode] = FollowedMode,
        **options: Any,
    ) -> None:
        """A session that does not watch yet.

        Args:
            simulator: knows the device.
            mode: makes the dispatch mode.
            options: as for `Session`.
        """
        self.simulator = simulator
        self.memory = simulator.memory
        super().__init__(simulator.recorder, mode=partial(mode, simulator.memory), **options)

    def run_node(self, node: Any, *, keeps_graph: bool = False) -> None:
        """Attribute the following operations to an autograd node, and run them on its stream."""
        super().run_node(node, keeps_graph=keeps_graph)
        self.memory.runs_node = node is not None
        if not self.simulator.is_following:  # all on the default stream
            return
        if node is None:
            self.simulator.streams.leave()
        else:
            self.simulator.streams.enter(self.mode.forward_of(node), stream_of(node))
