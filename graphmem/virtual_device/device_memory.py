"""The memory of the virtual GPU: one allocator, fed while the program runs, and queried by it.

(1) The online simulator feeds it: `malloc` at each birth, `free` at each death, in program order. A
death is applied when the next operation ends; `expect_free` remembers where it happened.
(2) Every query goes through `settled()`, which has the live run bring the allocator up to date and
then returns it.
(3) A block that another stream uses (`record_stream`) stays active after `free` until that stream
has done the work queued on it by then (`insert_events`). The next `malloc` takes it back
(`process_events`). On a card this depends on how fast kernels are; here work takes no time
(`DeviceClock`), an assumption; `slow` knows how much a slower card may keep.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from graphmem.allocator import (
    EVERYBODYS,
    AllocatorSettings,
    Block,
    CachingAllocator,
    OutOfMemory,
    PoolId,
    parse_settings,
)
from graphmem.allocator.checkpoints import PoolState, Restored, pool_state, set_pool_state
from graphmem.allocator.messages import AllocatorSettingError
from graphmem.gpus import Gpu
from graphmem.virtual_device.device_clock import DeviceClock
from graphmem.virtual_device.devices import Devices
from graphmem.virtual_device.live_run import GiveBack, LiveRun, NoLiveRun
from graphmem.virtual_device.memory_history import MemoryHistory, Stack
from graphmem.virtual_device.slow_device import Progress, SlowDevice
from graphmem.virtual_device.stream_captures import StreamCaptures

DEFAULT_STREAM = 0

OutOfMemoryObserver = Callable[[int, int, int, int], Any]


@dataclass(frozen=True, slots=True)
class BlockOrigin:
    """Where an allocation or a free comes from.

    Attributes:
        stream: the current stream.
        stack: the stack of an allocation, if recorded.
        stack_of_free: the stack of a free, if recorded.
    """

    stream: int = DEFAULT_STREAM
    stack: Stack | None = None
    stack_of_free: Stack | None = None


class _OfThread(threading.local):
    """The current stream of each thread (c10/cuda/CUDAStream.cpp, `current_streams`)."""

    stream = DEFAULT_STREAM
    runs_node = False


class DeviceMemory:
    """The device's allocator, and the state that its users share.

    Attributes:
        gpu: the card.
        allocator: PyTorch's caching allocator.
        devices: the cards that the process sees; this is the memory of its own.
        run: the live run; knows what the program did so far.
        before_use: called before the program switches streams or makes a pool: from there on, the
            order of births and deaths does not say which memory a request gets.
        captures: CUDA graphs being captured.
        clock: the device's time.
        slow: what a device would keep that is as slow as can be.
        history: the recorded memory history.
        conf: the text of the settings in force (PYTORCH_CUDA_ALLOC_CONF).
    """

    def __init__(
        self,
        gpu: Gpu,
        allocator: CachingAllocator,
        devices: Devices | None = None,
        *,
        run: LiveRun | None = None,
        first_settings: Callable[[], AllocatorSettings] | None = None,
    ) -> None:
        """Make the memory of a card.

        Args:
            gpu: the card.
            allocator: PyTorch's caching allocator.
            devices: the cards that the process sees; default: only this one.
            run: the live run that follows the program; None for a trace.
            first_settings: reads the environment's settings when memory is first asked for, as
                PyTorch does. None: the allocator already has its settings.
        """
        self.gpu = gpu
        self.allocator = allocator
        self.devices = devices or Devices()
        self.run: LiveRun = run or NoLiveRun()
        self.before_use: Callable[[], None] = _nothing
        self.captures = StreamCaptures()
        allocator.private.is_capturing = self._is_capturing
        self._first_settings = first_settings
        self.clock = DeviceClock()
        self.slow = SlowDevice()
        self.history = MemoryHistory()
        self.conf = ""
        self._of_thread = _OfThread()
        self._users: dict[Block, set[int]] = {}
        self._freed_at: dict[Block, BlockOrigin] = {}
        self._pending: list[tuple[Block, float]] = []
        self._raw: dict[int, GiveBack] = {}
        self._observers: list[OutOfMemoryObserver] = []

    @property
    def current_stream(self) -> int:
        """The handle of the stream on which this thread's operations run; 0: the default one."""
        return self._of_thread.stream

    @current_stream.setter
    def current_stream(self, handle: int) -> None:
        if handle != DEFAULT_STREAM:
            self.before_use()
        self._of_thread.stream = handle

    @property
    def runs_node(self) -> bool:
        """Whether this thread runs an autograd node, which on a card autograd's own thread does."""
        return self._of_thread.runs_node

    @runs_node.setter
    def runs_node(self, runs_node: bool) -> None:
        self._of_thread.runs_node = runs_node

    def settled(self) -> CachingAllocator:
        """The allocator, brought up to date with the program."""
        self._read_environment()
        self.run.settle()
        return self.allocator

    # For the online simulator --------------------------------------------------------------------

    @property
    def thread(self) -> tuple[int, bool]:
        """The current thread, and whether on a card it would be autograd's own thread."""
        return threading.get_ident(), self.runs_node

    def origin(self) -> BlockOrigin:
        """The origin of an allocation or a free that happens now."""
        stack, stack_of_free = self.history.stacks_here()
        return BlockOrigin(self.current_stream, stack, stack_of_free)

    def malloc(self, requested_bytes: int, origin: BlockOrigin | None = None) -> Block:
        """Allocate for the stream of `origin`, by default the current one.

        Raises:
            torch.OutOfMemoryError: as on the card, with PyTorch's message.
        """
        origin = origin or self.origin()
        with self.history.caused_by(origin.stack):
            self._read_environment()
            self._take_back_finished()
            try:
                block = self.allocator.malloc(requested_bytes, origin.stream)
            except OutOfMemory as error:
                self._tell_observers(error)
                raise torch.OutOfMemoryError(str(error)) from error
        if block.prev is None and block.next is not None:
            self.history.forget_segment(block.address)
        return block

    def expect_free(self, block: Block) -> None:
        """Note that the program drops a block here; `free` may come later."""
        self._freed_at[block] = self.origin()

    def free(self, block: Block) -> None:
        """Free a block; if another stream uses it, once that stream is done, clause (3)."""
        origin = self._freed_at.pop(block, None) or self.origin()
        users = self._users.pop(block, None)
        with self.history.caused_by(origin.stack_of_free):
            self.allocator.free(block, still_used=bool(users))
        if users:
            self.slow.free(block.size, users)
            self._pending.append((block, max(map(self.clock.done_at, users))))

    def record_stream(self, block: Block, stream: int) -> None:
        """Note that a stream other than its own uses the block (`recordStream`)."""
        if stream != block.segment.stream:
            self._users.setdefault(block, set()).add(stream)

    def mark(self, stream: int) -> Progress:
        """What a stream will have reached, after what the program has freed so far."""
        if self._users:
            self.run.settle()
        return self.slow.mark(stream)

    def host_waits(self, progress: Progress | None = None) -> None:
        """Note that the host waits for what an event marked, by default for the device."""
        if progress is None:
            self.mark(DEFAULT_STREAM)
            self.slow.host_waits_for_all()
        else:
            self.slow.host_waits(progress)

    def _read_environment(self) -> None:
        """Read the settings once (`CUDAAllocatorConfig::instance`)."""
        read, self._first_settings = self._first_settings, None
        if read is not None:
            self._take_over(_accepted(read))

    def _is_capturing(self) -> bool:
        return self.captures.graph_of(self.current_stream) is not None

    def _take_over(self, settings: AllocatorSettings) -> None:
        fraction = self.allocator.settings.memory_fraction
        if fraction is not None:
            settings = replace(settings, memory_fraction=fraction)
        self.allocator.configure(settings)

    def _take_back_finished(self) -> None:
        """`process_events`, which does nothing during a capture."""
        if self.allocator.private.hold_memory_back:
            return
        for block, moment in self._pending:
            if block.pending and moment <= self.clock.now:
                self.allocator.finish(block)
        self._pending = [each for each in self._pending if each[0].pending]

    def _tell_observers(self, error: OutOfMemory) -> None:
        state = error.state
        limit = state.total_bytes if state.allowed_bytes is None else state.allowed_bytes
        for observer in self._observers:
            observer(0, error.tried_bytes, limit, state.free_bytes)

    # For the program -----------------------------------------------------------------------------

    def empty_cache(self, pool_id: PoolId = EVERYBODYS) -> None:
        """`torch.cuda.empty_cache`, or the release of one private pool's segments."""
        allocator = self.settled()
        with self.history.caused_by(self.origin().stack_of_free):
            if self._pending and not allocator.private.hold_memory_back:
                self.clock.wait_until(max(moment for _, moment in self._pending))
                self.slow.host_waits_for_all()
                self._pending.clear()
            allocator.empty_cache(pool_id)

    def open_pool(self, pool_id: PoolId, *, helps_out: bool, no_split: bool) -> None:
        """Make a `MemPool`; see `PrivatePools.open`."""
        self.before_use()
        self.settled().private.open(pool_id, helps_out=helps_out, no_split=no_split)

    def begin_pool(self, pool_id: PoolId, takes: Callable[[int], bool]) -> None:
        """Send requests to a private pool from now on (`beginAllocateToPool`)."""
        self.settled().private.begin(pool_id, takes)

    def end_pool(self, pool_id: PoolId) -> None:
        """Send no more requests to a private pool (`endAllocateToPool`)."""
        self.settled().private.end(pool_id)

    def retain_pool(self, pool_id: PoolId) -> None:
        """Add one user to a private pool (`createOrIncrefPool`)."""
        self.settled().private.open(pool_id)

    def release_pool(self, pool_id: PoolId) -> None:
        """Take one user off a private pool (`releasePool`)."""
        self.settled().private.release(pool_id)

    def pool_state(self, pool_id: PoolId) -> PoolState:
        """Note the state of a private pool (`getCheckpointState`)."""
        return pool_state(self.settled(), pool_id)

    def set_pool_state(self, state: PoolState) -> Restored:
        """Give a private pool a noted state again (`setCheckpointPoolState`).

        The caller knows whose the blocks are, and gives the others to `keep_raw`.
        """
        allocator = self.settled()
        with self.history.caused_by(self.origin().stack):
            restored = set_pool_state(allocator, state)
        for address, block in restored.freed.items():
            self._users.pop(block, None)
            self._freed_at.pop(block, None)
            self._raw.pop(address, None)
        return restored

    def keep_raw(self, blocks: Iterable[Block]) -> None:
        """Let blocks in use be freed by their addresses only (`raw_delete`)."""
        self._raw.update({block.address: partial(self.free, block) for block in blocks})

    def raw_alloc(self, requested_bytes: int, stream: int) -> int:
        """`torch.cuda.caching_allocator_alloc`.

        Returns:
            the address.

        Raises:
            torch.OutOfMemoryError: there is no room for it.
        """
        block, self._raw[block.address] = self.run.hold(requested_bytes, stream)
        return block.address

    def raw_delete(self, address: int) -> None:
        """`torch.cuda.caching_allocator_delete`.

        Raises:
            RuntimeError: `raw_alloc` did not allocate this address.
        """
        self.run.settle()
        give_back = self._raw.pop(address, None)
        if give_back is None:
            raise RuntimeError(f"invalid device pointer: {address:#x}")
        give_back()

    def configure(self, text: str) -> None:
        """Change the settings from now on; a memory fraction is kept.

        Raises:
            RuntimeError: PyTorch would refuse them, or they are not modelled.
        """
        self.run.settle()
        self._first_settings = None
        self._take_over(_accepted(lambda: parse_settings(text, self.allocator.release)))
        self.conf = text

    @property
    def fraction(self) -> float:
        """The share of the device that the process may use (`getMemoryFraction`)."""
        allocator = self.settled()
        total, limit = allocator.device.total_bytes, allocator.limit_bytes
        return 1.0 if limit is None or not total else limit / total

    def limit(self, fraction: float) -> None:
        """Limit the process to a share of the device (`setMemoryFraction`)."""
        allocator = self.settled()
        allocator.configure(replace(allocator.settings, memory_fraction=fraction))

    def record_history(self, *args: Any, **kwargs: Any) -> None:
        """Start, change or stop recording: `MemoryHistory.record`."""
        self.run.settle()
        self.history.record(*args, **kwargs)
        self.allocator.on_event = self.history.note

    def observe_out_of_memory(self, observer: OutOfMemoryObserver) -> None:
        """Call a function at each out-of-memory: device, bytes tried, bytes allowed, bytes free."""
        self._observers.append(observer)


def _nothing() -> None:
    return None


def _accepted(read: Callable[[], AllocatorSettings]) -> AllocatorSettings:
    try:
        return read()
    except AllocatorSettingError as error:
        raise RuntimeError(str(error)) from error
