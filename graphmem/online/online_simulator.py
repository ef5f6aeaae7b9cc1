"""The simulator of a running program.

(1) After each operation, the events since the last one go to the allocator in order of ticks:
    deaths, and the operation's births and scratch memory. `simulate` does the same with a finished
    graph, by the same `life_events_of`.
(2) The recorder notes which storages were born or lost an owner, so an operation costs no more than
    its own events.
(3) A request that does not fit raises an error in the operation. What the operation had allocated
    by then is freed, as when C++ unwinds; a workspace stays.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from functools import partial

import torch

from graphmem.allocator import Block, OutOfMemory
from graphmem.events import Birth, CacheEmptied, Death, Event, LifeEvent
from graphmem.graph import Op, Owner, OwnerKind, Source, Storage
from graphmem.kernel_program import MAIN_THREAD, OnlineRules, Program, thread_of
from graphmem.pipeline import online_pass
from graphmem.runtime import Runtime
from graphmem.simulate import Simulator, Timeline, life_events_of
from graphmem.trace.recorder import Recorder
from graphmem.units import format_bytes
from graphmem.virtual_device.device_memory import DeviceMemory
from graphmem.virtual_device.live_run import GiveBack
from graphmem.virtual_device.node_streams import NodeStreams
from graphmem.virtual_device.random import draws_random_numbers

_BY_ADDRESS = "memory that the program took by caching_allocator_alloc"


@dataclass(frozen=True)
class RefusedRequest:
    """A request that did not fit.

    Attributes:
        op: the operation that made it.
        tick: its tick, after the live storages had been named.
        message: PyTorch's.
        alive: the live storages, with the bytes of each block.
        moment: the index of the last moment before it.
        requested, tried: bytes that the program asked for, and the allocator of the driver.
        allocated, reserved, free: the bytes then, the last of the driver.
    """

    op: Op | None
    tick: int
    message: str
    alive: tuple[tuple[Storage, int], ...]
    moment: int
    requested: int
    tried: int
    allocated: int
    reserved: int
    free: int


class OnlineSimulator:
    """Follows a recorder and keeps the device's memory up to date: a `LiveRun`.

    Attributes:
        runtime: the simulated machine.
        is_following: whether it follows the program yet.
        memory: allocates and frees blocks.
        recorder: reports what the program does.
        refusals: every request that did not fit.
        streams: knows the stream of each operation.
        where: knows the program's line.
    """

    def __init__(
        self,
        runtime: Runtime,
        memory: DeviceMemory,
        look_before_refusal: Callable[[], None] = lambda: None,
        on_moment: Callable[[Event, Block | None], None] | None = None,
    ) -> None:
        """An unused device, which is not followed yet.

        Args:
            runtime: the machine to simulate.
            memory: the device's.
            look_before_refusal: called when a request does not fit, before the error is raised.
            on_moment: told of each event, and of the block that it gave a storage.
        """
        self.runtime = runtime
        self.memory = memory
        self.streams = NodeStreams(memory)
        self.is_following = False
        self.recorder = Recorder(torch.device("cuda", memory.devices.own))
        self._graph = self.recorder.graph
        self._rules: OnlineRules
        self._simulator = Simulator(memory.allocator, memory, on_moment)
        self.refusals: list[RefusedRequest] = []
        self._look_before_refusal = look_before_refusal
        self._changed: list[Storage] = []
        self._settled = 0
        self._scratch_ids = itertools.count(-1, -1)  # storages of the graph count up from 0
        self._kept: set[int] = set()
        self.where: Callable[[], Source | None] = lambda: None

    def follow(self) -> None:
        """Follow the program from here on, after what it has done so far on the default stream."""
        if self.is_following:
            return
        self.is_following = True
        self._rules = online_pass("kernel_memory", self.runtime)
        self.memory.run = self.recorder.run = self
        self.recorder.refs.free_outlived()
        self._settled = self.recorder.tick
        for event in self._events_so_far():
            self._simulator.apply(event)

    def _events_so_far(self) -> list[Event]:
        graph, programs = self._graph, dict[int, Program]()
        for op in graph.ops:
            program = self._rules.program_of(op, thread_of(graph, op))
            if program is not None:
                programs[op.index] = program
        lives = life_events_of(graph.storages, graph, programs, self._scratch_ids)
        emptied = map(CacheEmptied, graph.emptied)
        return sorted([*lives, *emptied], key=lambda event: event.tick)

    def empty_cache(self, tick: int) -> None:
        """Empty the cache, as a moment of its own."""
        self.settle()
        self._simulator.apply(CacheEmptied(tick))

    def note_change(self, storage: Storage) -> None:
        """Note a storage that was born or lost an owner; its death is applied later."""
        self._changed.append(storage)
        if self.memory.history.takes_stacks_of_frees:
            block = self._simulator.block_of(storage)
            if block is not None:
                self.memory.expect_free(block)

    def settle(self) -> None:
        """Apply the events since the last operation."""
        self.recorder.refs.free_outlived()
        self._apply(self._events({}), None)

    def highest_between(self, start: int, end: int) -> int:
        """The most bytes allocated from one tick to another."""
        moments = self._simulator.timeline.moments
        first, last = bisect_right(moments.ticks, start) - 1, bisect_right(moments.ticks, end)
        return max(moments.allocated[max(0, first) : last])

    def block_of(self, tensor: torch.Tensor) -> Block | None:
        """The block that holds a tensor; None for one that is empty or elsewhere."""
        storage = self.recorder.storage_of(tensor)
        return None if storage is None else self.block_holding(storage)

    def block_holding(self, storage: Storage) -> Block | None:
        """The block of a storage."""
        if storage.birth > self._settled:
            self.settle()
        return self._simulator.block_of(storage)

    def take_block(self, storage: Storage, block: Block) -> None:
        """Count a storage, born now, in a block that was in use without it."""
        storage.birth = self._settled = self.recorder.next_tick()
        self._simulator.take(Birth(storage.birth, storage), block)

    def lose_block(self, storage: Storage, again: Block | None = None) -> None:
        """Note that a storage's block was freed without it.

        Args:
            storage: the storage.
            again: the block that was allocated for it since, at the same address.
        """
        if again is None:
            self._simulator.lose(Death(self.recorder.next_tick(), storage))
        else:
            self._simulator.exchange(storage, again)

    def alive(self) -> list[tuple[Storage, Block]]:
        """The live storages, in order of allocation."""
        self.settle()
        return self._simulator.alive()

    def timeline(self) -> Timeline:
        """What happened so far."""
        self.settle()
        return self._simulator.finish()

    def take_blas_workspace(self) -> None:
        """Allocate the workspace of the main thread's cuBLAS handle, if handles keep one."""
        scratch = self._rules.take_blas_workspace(self._on_stream(MAIN_THREAD))
        if scratch is not None:
            self._add_workspace(scratch.what, scratch.nbytes)
            self.settle()

    def keep(self, what: str, nbytes: int) -> GiveBack:
        """Allocate memory for a library; the function returned frees it."""
        storage = self._add_workspace(what, nbytes)
        self._kept.add(storage.id)
        self.settle()
        return partial(self._let_go, storage)

    def hold(self, nbytes: int, stream: int) -> tuple[Block, GiveBack]:
        """Allocate memory that the program asks for by address, with the function that frees it."""
        self.settle()
        try:
            block = self.memory.malloc(nbytes, replace(self.memory.origin(), stream=stream))
        except torch.OutOfMemoryError as refused:
            self._note(refused, None, self._newest_moment)
            raise refused from None
        storage, source = self.recorder.new_bytes(nbytes), self.where()
        self.take_block(storage, block)
        storage.owners.append(Owner(OwnerKind.VARIABLE, "", storage.birth, source=source))
        at = "" if source is None else f" ({source})"
        self.recorder.label(storage.id, OwnerKind.COMPILED, f"{_BY_ADDRESS}{at}")
        return block, partial(self._let_go, storage)

    def _let_go(self, storage: Storage) -> None:
        self.recorder.let_go(storage, storage.owners[0])
        self.settle()

    def _add_workspace(self, what: str, nbytes: int) -> Storage:
        """A workspace that the program asked for, not an operation."""
        storage = self.recorder.new_bytes(nbytes)
        storage.owners.append(Owner(OwnerKind.WORKSPACE, what, storage.birth))
        self.note_change(storage)
        return storage

    def clear_blas_workspaces(self) -> None:
        """Free every workspace."""
        self._rules.forget_workspaces()
        for storage, _ in self.alive():
            owner = storage.owned_as(OwnerKind.WORKSPACE)
            if owner is not None and storage.id not in self._kept:
                self.recorder.let_go(storage, owner)
        self.settle()

    def advance(self, op: Op) -> None:
        """Apply the births and the scratch memory of a recorded operation."""
        self.streams.note(op)
        thread = thread_of(self._graph, op)
        program = self._rules.program_of(op, self._on_stream(thread))
        self._apply(self._events({} if program is None else {op.index: program}), op)
        capture = self.memory.captures.graph_of(self.memory.current_stream)
        if capture is not None and draws_random_numbers(op):
            capture.draw_random_numbers()

    def note_communicator(self) -> None:
        """Take NCCL's part of the card: ranks have joined."""
        before = self.runtime.context
        self.runtime = replace(self.runtime, communicators=self.runtime.communicators + 1)
        after = self.runtime.context
        self.memory.allocator.device.grow_context(after.estimate_bytes)
        taken, least, most = (
            format_bytes(now - then)
            for now, then in zip(astuple(after), astuple(before), strict=True)
        )
        self.recorder.assume(
            "NCCL",
            f"a communicator takes {taken} of the card ({least} to {most} were seen)",
            "it is not PyTorch's allocator that gives them",
            None,
        )

    def _on_stream(self, thread: str) -> str:
        """The key of a cuBLAS workspace: thread and stream (`getCurrentCUDABlasHandle`)."""
        stream = self.memory.current_stream
        return f"{thread}, stream {stream:#x}" if stream else thread

    def _events(self, programs: dict[int, Program]) -> list[LifeEvent]:
        known = len(self._changed)  # the garbage collector may add more at any moment
        changed = {each.id: each for each in self._changed[:known]}
        del self._changed[:known]
        return life_events_of(changed.values(), self._graph, programs, self._scratch_ids)

    def _apply(self, events: list[LifeEvent], op: Op | None) -> None:
        """Send new events to the allocator.

        Raises:
            torch.OutOfMemoryError: the operation asks for more than there is.
        """
        before, self._settled = self._settled, self.recorder.tick
        taken: list[Storage] = []
        refused: torch.OutOfMemoryError | None = None
        for event in events:
            if isinstance(event, Death):
                if self._simulator.block_of(event.storage) is not None:
                    self._simulator.apply(event)
            elif event.tick > before and refused is None:
                try:
                    self._simulator.apply(event)
                except torch.OutOfMemoryError as error:
                    refused = error
                else:
                    taken.append(event.storage)
        if refused is not None:
            moment = self._newest_moment
            if not any(map(_is_workspace, taken)):
                self._rules.untake_workspaces()
            self._give_back(taken)
            self._note(refused, op, moment)
            raise refused

    @property
    def _newest_moment(self) -> int:
        return len(self._simulator.timeline.moments) - 1

    def _note(self, refused: torch.OutOfMemoryError, op: Op | None, moment: int) -> None:
        cause = refused.__cause__
        assert isinstance(cause, OutOfMemory)
        self._look_before_refusal()
        alive = tuple((storage, block.size) for storage, block in self._simulator.alive())
        tick = self.recorder.tick
        state = cause.state
        self.refusals.append(
            RefusedRequest(
                op,
                tick,
                str(refused),
                alive,
                moment,
                requested=cause.requested_bytes,
                tried=cause.tried_bytes,
                allocated=state.allocated_bytes,
                reserved=state.reserved_bytes,
                free=state.free_bytes,
            )
        )

    def _give_back(self, taken: list[Storage]) -> None:
        for storage in reversed(taken):
            if self._simulator.block_of(storage) is not None and not _is_workspace(storage):
                self._simulator.apply(Death(self._settled, storage))


def _is_workspace(storage: Storage) -> bool:
    """Whether a library keeps the storage beyond the operation."""
    return storage.id < 0 and storage.death is None
