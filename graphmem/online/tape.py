"""What an allocator was asked for while a program ran, to be asked of another one.

A trace is simulated on several cards. Births and deaths of storages alone do not say which requests
went to which private pool and stream, so an allocator that a trace follows writes down each call:
the number of the block, the stream, the pool, and whether a graph was being captured.

When a pool's state is set again, the blocks then in use are new ones at the addresses of those in
use when the state was noted; the tape says which of the latter each of the former replaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from graphmem.allocator import EVERYBODYS, Block, CachingAllocator, OutOfMemory, PoolId
from graphmem.allocator.checkpoints import PoolState, Restored, pool_state, set_pool_state
from graphmem.allocator.private_pools import PrivatePool, PrivatePools, Takes
from graphmem.capacity import CardReplay, RefusedStorage, can_do_without
from graphmem.events import Birth, CacheEmptied, Event
from graphmem.simulate import Timeline
from graphmem.virtual_device.device_memory import DeviceMemory

Entry = tuple[Callable[..., None], tuple[Any, ...]]
"""A method of `_Player`, and its arguments."""


class Tape:
    """The calls of one allocator, in order."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._numbers: dict[Block, int] = {}
        self._next = 0
        self._states: dict[int, tuple[PoolState, dict[int, int]]] = {}
        self._is_inner = False

    def replay(self, allocator: CachingAllocator, moments: int | None = None) -> CardReplay:
        """Make the calls of another allocator, until it runs out of memory.

        Args:
            allocator: an empty one.
            moments: end after so many moments of the timeline; None: play everything.
        """
        player = _Player(allocator)
        for play, arguments in self._entries:
            if player.refused is not None or player.played == moments:
                break
            play(player, *arguments)
        return player.finish()

    def number_of(self, block: Block) -> int:
        """The number of a block in use."""
        return self._numbers[block]

    def drop(self, block: Block) -> int:
        """Forget the number of a block that is no longer in use; returns it."""
        return self._numbers.pop(block, -1)

    def take(self, block: Block) -> int:
        """Number a block that was handed out."""
        self._numbers[block] = self._next
        self._next += 1
        return self._next - 1

    def write(self, play: Callable[..., None], *arguments: Any) -> None:
        """Add a call, unless another one makes it."""
        if not self._is_inner:
            self._entries.append((play, arguments))

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Write nothing: a call that is on the tape makes others."""
        before, self._is_inner = self._is_inner, True
        try:
            yield
        finally:
            self._is_inner = before

    def note(self, event: Event, block: Block | None) -> None:
        """Write down an event, and the block that it gave a storage."""
        self.write(_Player.note, event, None if block is None else self.number_of(block))

    def note_state(self, state: PoolState) -> None:
        """Remember which blocks were in use in a noted state."""
        at = {block.address: number for block, number in self._numbers.items()}
        used = (each for blocks in state.segments for each in blocks if each.allocated)
        self._states[id(state)] = state, {each.address: at[each.address] for each in used}
        numbers = list(self._states[id(state)][1].values())
        self.write(_Player.note_state, id(state), state.pool_id, numbers)

    def set_state(self, state: PoolState, restored: Restored) -> None:
        """Write that a pool got a noted state again."""
        for block in restored.freed.values():
            self._numbers.pop(block, None)
        _, numbers = self._states[id(state)]
        new = [(numbers[at], self.take(block)) for at, block in restored.created.items()]
        self.write(_Player.set_state, id(state), new)


class TapedAllocator(CachingAllocator):
    """An allocator that writes down what it is asked for."""

    tape: Tape

    @classmethod
    def like(cls, other: CachingAllocator) -> TapedAllocator:
        """An empty allocator with the settings and the device of an empty one."""
        made = cls(other.settings, device=other.device, release=other.release)
        made.tape = Tape()
        made.private = _TapedPools(made.small, made.large, made.release)
        made.private.tape = made.tape
        return made

    def malloc(self, requested_bytes: int, stream: int = 0) -> Block:
        """Hand out a block."""
        with self.tape.inside():
            block = super().malloc(requested_bytes, stream)
        number, pool_id = self.tape.take(block), block.segment.pool.id
        self.tape.write(
            _Player.malloc, number, requested_bytes, stream, pool_id, self.private.is_capturing()
        )
        return block

    def free(self, block: Block, *, still_used: bool = False) -> None:
        """Take a block back."""
        number = self.tape.number_of(block) if still_used else self.tape.drop(block)
        self.tape.write(_Player.free, number, still_used)
        super().free(block, still_used=still_used)

    def finish(self, block: Block) -> None:
        """Recycle a block that other streams used."""
        self.tape.write(_Player.recycle, self.tape.drop(block))
        super().finish(block)

    def empty_cache(self, pool_id: PoolId = EVERYBODYS) -> None:
        """Return unused memory to the driver."""
        self.tape.write(_Player.empty_cache, pool_id, self.private.is_capturing())
        with self.tape.inside():
            super().empty_cache(pool_id)


class _TapedPools(PrivatePools):
    """Private pools that write down who uses them."""

    tape: Tape

    def open(
        self, pool_id: PoolId, *, helps_out: bool = False, no_split: bool = False
    ) -> PrivatePool:
        self.tape.write(_Player.open, pool_id, helps_out, no_split)
        return super().open(pool_id, helps_out=helps_out, no_split=no_split)

    def begin(self, pool_id: PoolId, takes: Takes) -> None:
        self.tape.write(_Player.begin, pool_id)
        with self.tape.inside():
            super().begin(pool_id, takes)

    def end(self, pool_id: PoolId) -> None:
        self.tape.write(_Player.end, pool_id)
        super().end(pool_id)

    def release(self, pool_id: PoolId) -> None:
        self.tape.write(_Player.release, pool_id)
        super().release(pool_id)


class TapedMemory(DeviceMemory):
    """A device's memory over a `TapedAllocator`."""

    allocator: TapedAllocator

    @property
    def tape(self) -> Tape:
        """What its allocator was asked for."""
        return self.allocator.tape

    def pool_state(self, pool_id: PoolId) -> PoolState:
        """Note the state of a private pool."""
        state = super().pool_state(pool_id)
        self.tape.note_state(state)
        return state

    def set_pool_state(self, state: PoolState) -> Restored:
        """Give a private pool a noted state again."""
        with self.tape.inside():
            restored = super().set_pool_state(state)
        self.tape.set_state(state, restored)
        return restored


class _Player:
    """Asks an allocator for what is on a tape.

    Attributes:
        refused: the request that failed, or None.
    """

    def __init__(self, allocator: CachingAllocator) -> None:
        self._allocator = allocator
        allocator.private.is_capturing = lambda: self._is_capturing
        self._is_capturing = False
        self._pool_id = EVERYBODYS
        self._blocks: dict[int, Block] = {}
        self._states: dict[int, tuple[PoolState, dict[int, int]]] = {}
        self._timeline = Timeline()
        self._without: set[int] = set()
        self._absent: set[int] = set()
        self._failed: OutOfMemory | None = None
        self.refused: RefusedStorage | None = None

    @property
    def played(self) -> int:
        """How many moments there were so far."""
        return len(self._timeline.moments) - 1

    def finish(self) -> CardReplay:
        """What came of it."""
        timeline = replace(self._timeline, segments=self._allocator.segments())
        retries = self._allocator.num_alloc_retries
        return CardReplay(timeline, retries, self.refused, len(self._absent))

    def malloc(
        self, number: int, nbytes: int, stream: int, pool_id: PoolId, is_capturing: bool
    ) -> None:
        self._pool_id, self._is_capturing = pool_id, is_capturing
        try:
            self._blocks[number] = self._allocator.malloc(nbytes, stream)
        except OutOfMemory as error:
            self._failed = error
            self._without.add(number)

    def free(self, number: int, still_used: bool) -> None:
        if number not in self._without:
            self._allocator.free(self._blocks[number], still_used=still_used)

    def recycle(self, number: int) -> None:
        if number not in self._without and self._blocks[number].pending:  # not since a full card
            self._allocator.finish(self._blocks[number])

    def empty_cache(self, pool_id: PoolId, is_capturing: bool) -> None:
        self._is_capturing = is_capturing
        self._allocator.empty_cache(pool_id)

    def open(self, pool_id: PoolId, helps_out: bool, no_split: bool) -> None:
        self._allocator.private.open(pool_id, helps_out=helps_out, no_split=no_split)

    def begin(self, pool_id: PoolId) -> None:
        self._allocator.private.begin(pool_id, lambda stream: self._pool_id == pool_id)

    def end(self, pool_id: PoolId) -> None:
        self._allocator.private.end(pool_id)

    def release(self, pool_id: PoolId) -> None:
        self._allocator.private.release(pool_id)

    def note_state(self, key: int, pool_id: PoolId, numbers: list[int]) -> None:
        state = pool_state(self._allocator, pool_id)
        self._states[key] = state, {each: self._blocks[each].address for each in numbers}

    def set_state(self, key: int, new: list[tuple[int, int]]) -> None:
        state, addresses = self._states[key]
        created = set_pool_state(self._allocator, state).created
        self._blocks.update({number: created[addresses[then]] for then, number in new})

    def note(self, event: Event, number: int | None) -> None:
        """Note a moment, unless its storage is one that the step does without."""
        failed, self._failed = self._failed, None
        if failed is not None:
            assert isinstance(event, Birth)  # no other event requests memory
            if not can_do_without(event.storage):
                self.refused = RefusedStorage(event.tick, event.storage, failed)
                return
            self._absent.add(event.storage.id)
        if not isinstance(event, CacheEmptied) and event.storage.id in self._absent:
            return
        block = None if number is None else self._blocks[number]
        self._timeline.note(event, block, self._allocator)
