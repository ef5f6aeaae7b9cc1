"""CUDA graphs: a capture allocates from the graph's private pool, a replay allocates nothing.

torch/cuda/graphs.py is PyTorch's own, over a base class as aten/src/ATen/cuda/CUDAGraph.cpp defines
it in a CUDA build. Captured operations run like any others, except that they allocate from the
graph's private pool. A replay launches kernels and allocates nothing.

Assumption: the driver's own memory for an instantiated graph is not counted; it lies outside the
allocator (`cudaGraphInstantiate`).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
import torch.cuda.graphs

from graphmem.allocator import EVERYBODYS, PoolId
from graphmem.torch_releases.differences import SEED_OF_EACH_CAPTURE, SEED_WHEN_NEEDED, Release
from graphmem.values.held import HeldValues, Written
from graphmem.virtual_device.device_memory import DEFAULT_STREAM, DeviceMemory
from graphmem.virtual_device.live_run import GiveBack
from graphmem.virtual_device.memory_pools import PoolHandles
from graphmem.virtual_device.messages import NoDriverGraphError
from graphmem.virtual_device.patching import Replacement, replaced, run_again

_OF_GRAPHS = (
    "CUDAGraph",
    "graph",
    "graph_pool_handle",
    "is_current_stream_capturing",
    "make_graphed_callables",
)
_STATE = ("seed", "offset")  # one int64 each


class RandomStates:
    """The seeds and offsets on the card that captured kernels read (CUDAGeneratorImpl.cpp)."""

    def __init__(self, memory: DeviceMemory, release: Release) -> None:
        """Start without any.

        Args:
            memory: the device's memory.
            release: the version of torch, which decides when states are made.
        """
        self._memory = memory
        self._of_a_capture = SEED_OF_EACH_CAPTURE.holds_in(release)
        self._when_needed = SEED_WHEN_NEEDED.holds_in(release)
        self._of_capture: dict[object, list[GiveBack]] = {}
        self._shared: dict[int, list[GiveBack]] = {}
        self._sharing: dict[int, set[object]] = {}

    def register(self, capture: object, generator: Any = None) -> None:
        """Make the state that all captures share, if this is the first (`register_graph`).

        Args:
            capture: keeps the state until `forget`.
            generator: by default the default generator.
        """
        if self._of_a_capture:
            return
        generator = generator or torch.cuda.default_generators[0]
        key: int = generator.state_number
        self._sharing.setdefault(key, set()).add(capture)
        if key not in self._shared:
            self._shared[key] = self._new_state()

    def begin(self, capture: object) -> None:
        """Begin a capture (`init_capture_state`)."""
        if self._of_a_capture and not self._when_needed:
            self._make(capture)

    def forget(self, capture: object) -> None:
        """Free a graph's states that no other uses.

        `unregister_graph`, `remove_capture_state`.
        """
        gone = self._of_capture.pop(capture, [])
        for key, sharing in list(self._sharing.items()):
            sharing.discard(capture)
            if not sharing:
                del self._sharing[key]
                gone = [*gone, *self._shared.pop(key)]
        for give_back in gone:
            give_back()

    def draw(self, capture: object) -> None:
        """Handle a captured operation that draws random numbers (`philox_cuda_state`)."""
        if self._of_a_capture:
            self._make(capture)

    def _make(self, capture: object) -> None:
        """Make the state of one capture, on the default stream (`initialize`)."""
        if capture in self._of_capture:
            return
        stream, self._memory.current_stream = self._memory.current_stream, DEFAULT_STREAM
        try:
            self._of_capture[capture] = self._new_state()
        finally:
            self._memory.current_stream = stream

    def _new_state(self) -> list[GiveBack]:
        return [self._memory.run.keep(f"a CUDA graph's random {what}", 8) for what in _STATE]


def graph_replacements(
    memory: DeviceMemory, handles: PoolHandles, release: Release, known: HeldValues
) -> list[Replacement]:
    """List the replacements of the classes and functions of CUDA graphs."""
    captures = memory.captures
    bases: list[Replacement] = [
        (torch._C, "_CUDAGraph", _graph_base(memory, handles, release, known)),
        (torch._C, "_graph_pool_handle", handles.of_user),
        (
            torch._C,
            "_cuda_isCurrentStreamCapturing",
            lambda: captures.graph_of(memory.current_stream) is not None,
        ),
    ]
    with replaced(bases):
        own = run_again(torch.cuda.graphs)
    return [
        *bases,
        *(
            (module, name, getattr(own, name))
            for module in (torch.cuda, torch.cuda.graphs)
            for name in _OF_GRAPHS
        ),
    ]


def _graph_base(
    memory: DeviceMemory, handles: PoolHandles, release: Release, known: HeldValues
) -> type:
    """The base class of `torch.cuda.CUDAGraph` (aten/src/ATen/cuda/CUDAGraph.cpp)."""
    states = RandomStates(memory, release)

    class Base(CudaGraphBase):
        _memory = memory
        _states = states
        _handles = handles
        _known = known

    return Base


class _Capture:
    """The C++ state of one graph; it lives as long as the Python object."""

    def __init__(
        self, memory: DeviceMemory, states: RandomStates, graph: weakref.ref[CudaGraphBase]
    ) -> None:
        self.memory = memory
        self.states = states
        self._graph = graph
        self.pool_id = EVERYBODYS
        self.retained: list[PoolId] = []  # other pools that a capture allocated from
        self.written: Sequence[Written] = ()
        self.is_over = False

    def graph(self) -> Any:
        """The program's object; None once it is gone."""
        return self._graph()

    def require(self, what: str) -> None:
        """Raise C++'s error if nothing has been captured."""
        if not self.is_over:
            raise RuntimeError(what)

    def draw_random_numbers(self) -> None:
        """Handle a captured operation that draws random numbers."""
        self.states.draw(self)

    def reset(self) -> None:
        """`CUDAGraph::reset`."""
        self.states.forget(self)
        if self.is_over:
            self.is_over = False
            for pool_id in (self.pool_id, *self.retained):
                self.memory.release_pool(pool_id)
            self.retained.clear()


class CudaGraphBase:
    """One graph: its private pool during capture, and what it keeps afterwards."""

    _memory: DeviceMemory
    _states: RandomStates
    _handles: PoolHandles
    _known: HeldValues
    _capture: _Capture
    _has_graph_exec = False

    def __new__(cls, keep_graph: bool = False) -> Any:
        """Make a graph, which as in C++ takes nothing before a capture."""
        graph = super().__new__(cls)
        graph._capture = _Capture(cls._memory, cls._states, weakref.ref(graph))
        # PyTorch's class has a `__del__` of its own from 2.13 on.
        weakref.finalize(graph, graph._capture.reset).atexit = False
        return graph

    def capture_begin(self, pool: PoolId | None = None, capture_error_mode: str = "global") -> None:
        """Send this stream's allocations to the graph's pool from now on.

        Raises:
            RuntimeError: as in C++.
        """
        capture, captures = self._capture, self._memory.captures
        stream = self._memory.current_stream
        if capture.is_over:
            raise RuntimeError(
                "This CUDAGraph instance already owns a captured graph."
                " To capture a new graph, create a new instance."
            )
        if stream == DEFAULT_STREAM:
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream."
                " (However, after capture, it's ok to replay them on the default stream.)"
            )
        self._memory.run.settle()
        self._states.register(capture)
        capture.pool_id = (pool[0], pool[1]) if pool else self._handles.of_graph()
        self._memory.begin_pool(capture.pool_id, lambda asked: captures.graph_of(asked) is capture)
        captures.begin(stream, capture)
        self._states.begin(capture)
        self._known.capture()

    def capture_end(self) -> None:
        """End the capture; the graph can then be replayed."""
        captures = self._memory.captures
        if captures.graph_of(self._memory.current_stream) is not self._capture:
            raise RuntimeError("Capture must end on the same stream it began on.")
        self._memory.end_pool(self._capture.pool_id)
        captures.end(self._capture)
        self._capture.written = self._known.end_capture()
        self._capture.is_over = True

    # From torch 2.14 on `capture_end` is Python, which instantiates the graph between these two.
    capture_end_pre = capture_end

    def capture_end_post(self) -> None:
        """Do nothing: there is no template to destroy."""

    def instantiate(self) -> None:
        """Prepare the graph for replays."""
        self._capture.require("capture_end() must have been called before calling instantiate")
        self._has_graph_exec = True

    def replay(self) -> None:
        """Launch what was captured."""
        self._capture.require("Called CUDAGraph::replay without a preceding successful capture.")
        self._known.replayed(self._capture.written)

    def pool(self) -> PoolId:
        """The id of its pool, which other graphs can share."""
        self._capture.require("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._capture.pool_id

    def pools(self) -> list[PoolId]:
        """List the ids of its own pool and of the others that it retains."""
        return [self.pool(), *self._capture.retained]

    def _retain_pool(self, pool_id: PoolId) -> None:
        """Keep a pool that the capture allocates from (`use_mem_pool`, from torch 2.14 on)."""
        self._memory.retain_pool((pool_id[0], pool_id[1]))
        self._capture.retained.append((pool_id[0], pool_id[1]))

    @classmethod
    def get_currently_capturing_graph(cls) -> Any:
        """The graph that the current stream is captured into.

        Raises:
            RuntimeError: none is, as in C++.
        """
        capture = cls._memory.captures.graph_of(cls._memory.current_stream)
        if capture is None:
            raise RuntimeError("There is no graph currently being captured.")
        return capture.graph()

    def reset(self) -> None:
        """Drop what was captured, and the pool."""
        self._capture.reset()
        self._has_graph_exec = False

    def register_generator_state(self, generator: Any) -> None:
        """Register the state of one of the program's own generators as well."""
        self._states.register(self._capture, generator)

    def enable_debug_mode(self) -> None:
        """Do nothing: there is no graph to show."""

    def debug_dump(self, debug_path: str) -> None:
        """Do nothing: there is no graph to show."""

    def raw_cuda_graph(self) -> NoReturn:
        """Refuse: there is no driver's graph."""
        raise NoDriverGraphError()

    raw_cuda_graph_exec = raw_cuda_graph
