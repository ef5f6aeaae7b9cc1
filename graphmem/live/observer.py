"""Observations made while a program runs, because its objects are gone afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from graphmem.graph import Storage
from graphmem.live.fragmentation import FragmentationWatch
from graphmem.live.leaks import IterationStart, LeakDetector
from graphmem.live.out_of_memory import OutOfMemorySection
from graphmem.live.unused_graphs import unused_graphs
from graphmem.online.online_simulator import OnlineSimulator
from graphmem.report.reasons import reason_for
from graphmem.report.schema import GROWTH
from graphmem.retention import Retention
from graphmem.trace.holders import holders_of, named_values
from graphmem.trace.location import Location
from graphmem.trace.naming import is_initialised, name_model, name_variables
from graphmem.trace.saved_tensors import SavedTensorHooks
from graphmem.units import format_bytes

MANY_OPERATIONS = 500_000
BYTES_AN_OPERATION = 1_300  # measured: 133,000 operations of an encoder's training took 161 MB


class Observer:
    """Samples the device when an iteration begins and when a request does not fit."""

    def __init__(
        self,
        simulator: OnlineSimulator,
        saved: SavedTensorHooks,
        location: Location,
        tell: Callable[[str], None],
    ) -> None:
        """Start without samples.

        Args:
            simulator: knows what the device holds.
            saved: knows what autograd holds.
            location: knows where the program is, and its variables.
            tell: called with a line of text for the user.
        """
        self._tell = tell
        self._next_size_to_tell = MANY_OPERATIONS
        self._simulator = simulator
        self._recorder = simulator.recorder
        self._saved = saved
        self._location = location
        self._graph = graph = simulator.recorder.graph
        self._leaks = LeakDetector(graph, self._holders_of, self._block_bytes)
        self._fragmentation = FragmentationWatch(graph, self._holders_of, self._reason_now)

    @property
    def grows_by(self) -> int:
        """The bytes that leaks add in each iteration, on average."""
        return sum(leak.grows_by for leak in self._leaks.leaks)

    def sections(self) -> dict[str, list[str]]:
        """The observations, as lines of the report by heading."""
        refused = OutOfMemorySection(self._simulator.refusals, self._reason_at)
        return {
            GROWTH: list(self._leaks.report_lines()),
            "fragmentation": list(self._fragmentation.report_lines()),
            "out of memory": list(refused.report_lines()),
            "unused graphs": list(self._unused_graphs()),
        }

    def _unused_graphs(self) -> Iterator[str]:
        """None if a request did not fit: its pass ended before it could be differentiated."""
        if not self._simulator.refusals:
            yield from unused_graphs(self._graph, self._simulator.timeline())

    def finish(self) -> None:
        """Sample the device at the end of the program, while its globals exist."""
        self._name_what_is_there()
        self._leaks.finish([storage for storage, _ in self._simulator.alive()])
        self._look_at_segments("at the end")

    def begin_iteration(self, number: int) -> None:
        """Sample the device at the beginning of an iteration."""
        alive = self._simulator.alive()
        allocated = sum(block.size for _, block in alive)
        start = IterationStart(number, self._recorder.tick, allocated)
        self._leaks.begin_iteration(start, [storage for storage, _ in alive])
        self._look_at_segments(f"as step {number} begins")
        self._tell_size(number)

    def _tell_size(self, iteration: int) -> None:
        """Warn that the record of a long run fills this machine's memory."""
        count = len(self._graph.ops)
        if count >= self._next_size_to_tell:
            self._next_size_to_tell = 2 * count
            size = format_bytes(count * BYTES_AN_OPERATION)
            self._tell(
                f"{count:,} operations are recorded after {iteration} iterations, about {size} of "
                "this machine's memory; --max-steps N ends a run earlier"
            )

    def refuse(self) -> None:
        """Sample the device at a refused request, while the holders' functions are on the stack."""
        self._name_what_is_there()
        self._leaks.refuse([storage for storage, _ in self._simulator.alive()])
        self._look_at_segments("as memory runs out")

    def _name_what_is_there(self) -> None:
        """Name models that were not called yet as well: one that does not fit never will be."""
        recorder, location = self._recorder, self._location
        for _, value in named_values(location):
            if isinstance(value, torch.nn.Module) and is_initialised(value):
                is_known = location.knows(value)
                root = location.name_of(value) if is_known else location.root_name(value)
                name_model(recorder, value, root)
        name_variables(recorder, location)

    def _look_at_segments(self, when: str) -> None:
        alive = self._simulator.alive()
        segments = self._simulator.timeline().segments
        storage_at = {block.address: storage for storage, block in alive}
        self._fragmentation.look(segments, storage_at, when)

    def _holders_of(self, wanted: list[int]) -> dict[int, Retention]:
        return holders_of(wanted, self._recorder, self._saved, self._location)

    def _block_bytes(self, storage: Storage) -> int:
        block = self._simulator.block_holding(storage)
        return 0 if block is None else block.size

    def _reason_now(self, storage: Storage) -> str:
        return self._reason_at(storage, self._recorder.tick)

    def _reason_at(self, storage: Storage, tick: int) -> str:
        return reason_for(storage, tick, self._graph)
