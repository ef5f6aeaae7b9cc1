"""A trace whose memory is followed from where the order of births and deaths no longer tells it.

A step that uses one stream and no pool is simulated after its trace. From its first other stream or
pool on, an allocator without limits runs along with the trace, as with `graphmem run`, and writes
a tape (`graphmem.online.tape`) that the cards which the report asks about then play.
"""

from __future__ import annotations

from typing import Any

from graphmem.online import addresses, pool_pointers
from graphmem.online.online_simulator import OnlineSimulator
from graphmem.online.session import FollowedSession
from graphmem.online.tape import Tape, TapedAllocator, TapedMemory
from graphmem.runtime import Runtime
from graphmem.simulate import Timeline
from graphmem.trace.addresses import far_from_others
from graphmem.virtual_device.fake_mode import VirtualFakeMode
from graphmem.virtual_device.patching import Replacement


class Following:
    """Follows a trace from where it has to."""

    def __init__(self, runtime: Runtime) -> None:
        """Wait for the program to use a stream or a pool.

        Args:
            runtime: the simulated machine.
        """
        allocator = TapedAllocator.like(runtime.new_allocator(bounded=False))
        self._memory = memory = TapedMemory(runtime.gpu, allocator)
        self._simulator = OnlineSimulator(runtime, memory, on_moment=memory.tape.note)
        memory.before_use = self._simulator.follow

    @property
    def memory(self) -> TapedMemory:
        """The device's memory."""
        return self._memory

    def session(self, **options: Any) -> FollowedSession:
        """A session of the program; the options are those of `Session`."""
        return FollowedSession(self._simulator, **options)

    def replacements(self, fake_mode: VirtualFakeMode) -> list[Replacement]:
        """The attributes to replace while the program runs."""
        simulator = self._simulator
        recorder, block_of = simulator.recorder, simulator.block_holding
        return [
            *addresses.replacements(recorder, block_of, far_from_others),
            *pool_pointers.replacements(simulator, fake_mode),
        ]

    def empty_cache(self, tick: int) -> None:
        """Empty the cache, if the memory is followed yet."""
        if self._simulator.is_following:
            self._simulator.empty_cache(tick)

    def outcome(self) -> tuple[Timeline, Tape] | None:
        """What happened on a card without limits; None if a simulation of the trace tells it."""
        if not self._simulator.is_following:
            return None
        return self._simulator.timeline(), self.memory.tape
