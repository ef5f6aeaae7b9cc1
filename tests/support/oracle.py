"""The CPU oracle: compare a trace's allocations and frees with those of a real run.

A real run is the same `TrainingLoop` on real CPU tensors, eager, with PyTorch's own C++ engine. A
dispatch mode sees every tensor that an operation returns and keeps a weak reference to its storage:
a storage first seen is an allocation, and the death of the weak reference is a free.
The trace is that of `graphmem.trace` on fake CPU tensors. `docs/exactness.md` says what is
compared and what is not.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from graphmem import TrainingStep
from graphmem.graph import StepGraph
from graphmem.trace import TraceOptions, trace
from graphmem.trace.loop import TrainingLoop
from graphmem.trace.wrapper_tensors import is_wrapper
from tests.support.assumed_values import AssumedValues, Calls

aten = torch.ops.aten
NORMALISATIONS = (
    aten.native_layer_norm.default,
    aten.native_batch_norm.default,
    aten.native_group_norm.default,
)
"""The CPU's kernels keep mean and deviation of a bf16 input in the weight's dtype; CUDA's always
keep them in fp32."""

_clear_autocast_cache = torch.clear_autocast_cache
Build = Callable[[], TrainingStep]
NEIGHBOURS = 6
BUILDING = -1


@dataclass(frozen=True)
class Event:
    """One allocation or free.

    Attributes:
        step: the iteration; BUILDING before the first one.
        kind: "alloc" or "free".
        nbytes: requested bytes of the storage; None if the CPU kernel is known to use another dtype
            than CUDA's (`NORMALISATIONS`).
        block: the number of the allocation, from 0; None for a storage older than the first
            iteration.
            where: the operation that allocated it, or that was running when it was freed; not
            compared.
    """

    step: int
    kind: str
    nbytes: int | None
    block: int | None
    where: str = field(compare=False)

    def __str__(self) -> str:
        block = "from build" if self.block is None else f"#{self.block}"
        nbytes = "?" if self.nbytes is None else self.nbytes
        return f"step {self.step}: {self.kind} {nbytes} B {block} ({self.where})"


# ---- the real run ------------------------------------------------------------------------------


@dataclass
class Recording:
    """The events of a real run.

    Attributes: events: in order. unordered: ranges of `events` whose order depends on addresses,
    because autocast's cache is a hash table keyed by pointers.
    """

    events: list[Event] = field(default_factory=list)
    unordered: list[range] = field(default_factory=list)


class _Block(weakref.ref[torch.UntypedStorage]):
    """A storage of the real run when it was first seen."""

    __slots__ = ("key", "nbytes", "number", "shown")
    key: int
    nbytes: int
    number: int | None
    shown: int | None


class RealRun(TorchDispatchMode):
    """Observes the results of every operation and the deaths of their storages.

    Args:
        assumed: the assumptions of a trace.
    """

    def __init__(self, assumed: AssumedValues | None = None) -> None:
        super().__init__()
        self._assumed = assumed or AssumedValues()
        self.calls = Calls()
        self.recording = Recording()
        self.step = BUILDING
        self.selected: float | None = None
        self._where = "build"
        self._allocations = 0
        self._blocks: dict[int, _Block] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if any(map(is_wrapper, types)):
            return NotImplemented  # the tensors inside it pass here
        if func is aten.to.dtype_layout and _is_zero(args[0]):
            with self, _zeros_are_made():
                return func.decompose(*args, **kwargs or {})
        self._where = str(func)
        if func is aten.nonzero.default and self.selected is not None:
            result = _select(args[0], self.selected)
        else:
            result = self._assumed.run(self.calls.next(func), args, kwargs or {})
        mixed = func in NORMALISATIONS and _is_mixed(args)
        for position, tensor in enumerate(_tensors(result)):
            self._observe(tensor, is_statistic=mixed and position > 0)
        return result

    def _observe(self, tensor: torch.Tensor, *, is_statistic: bool) -> None:
        storage = tensor.untyped_storage()
        known = self._blocks.get(storage._cdata)
        nbytes = storage.nbytes()
        if (
            tensor.is_meta
            or (known is None and (not nbytes or tensor._is_zerotensor()))
            or (known is not None and known.nbytes == nbytes)
        ):
            return
        block = _Block(storage, self._freed)
        block.key, block.nbytes, block.number = storage._cdata, nbytes, None
        block.shown = None if is_statistic else nbytes
        if self.step != BUILDING:
            block.number = self._allocations
            self._allocations += 1
        self._note("alloc", block)
        if known is not None:
            self._freed(known)
        self._blocks[block.key] = block

    def _freed(self, block: _Block) -> None:
        if self._blocks.get(block.key) is block:
            del self._blocks[block.key]
            self._note("free", block)

    def _note(self, kind: str, block: _Block) -> None:
        if self.step != BUILDING:
            event = Event(self.step, kind, block.shown, block.number, self._where)
            self.recording.events.append(event)

    def clear_autocast_cache(self) -> None:
        """Replaces `torch.clear_autocast_cache`."""
        start = len(self.recording.events)
        _clear_autocast_cache()
        self.recording.unordered.append(range(start, len(self.recording.events)))


def _zeros_are_made() -> Any:
    """Let what a composite calls pass the fallback for tensors of zeros, as without a mode."""
    key = torch._C.DispatchKey.ZeroTensor
    excluded = torch._C._dispatch_tls_local_exclude_set().remove(key)
    included = torch._C._dispatch_tls_local_include_set()
    return torch._C._ForceDispatchKeyGuard(included, excluded)


def _is_zero(value: Any) -> bool:
    """Whether a value is a tensor of zeros without memory; a number may stand for a tensor."""
    return isinstance(value, torch.Tensor) and value._is_zerotensor()


def _select(mask: torch.Tensor, fraction: float) -> torch.Tensor:
    """The first elements, as many as the trace assumes (`TrainingStep.assume`)."""
    return torch.zeros(round(fraction * mask.numel()), mask.dim(), dtype=torch.int64)


def _is_mixed(args: tuple[Any, ...]) -> bool:
    """Whether a normalisation's input is half precision and its parameters are not."""
    dtypes = {tensor.dtype for tensor in _tensors(args)}
    return args[0].dtype in (torch.bfloat16, torch.float16) and len(dtypes) > 1


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


def run(build: Build, options: TraceOptions, assumed: AssumedValues | None = None) -> Recording:
    """Run the step on the CPU and record its allocations and frees.

    Args:
        build: makes the step.
        options: the options of the trace to compare with.
        assumed: that trace's assumptions.
    """
    given = (assumed or AssumedValues()).given()
    with comparable(), given, RealRun(assumed) as mode:
        iterate = _iterate_of(build(), mode, options)
        with mock.patch.object(torch, "clear_autocast_cache", mode.clear_autocast_cache):
            for mode.step in range(options.steps):
                mode.calls.begin_iteration()
                iterate()
        return replace(mode.recording, events=list(mode.recording.events))


def _iterate_of(step: TrainingStep, mode: RealRun, options: TraceOptions) -> Callable[[], Any]:
    mode.selected = step.assume.get("nonzero")
    if step.step is not None:
        return step.step
    loop = TrainingLoop(
        step,
        torch.device("cpu"),
        lambda mark: None,
        lambda tensor: None,
        keep_grads=options.keep_grads,
        inference=options.inference,
    )
    loop.prepare()
    return loop.iterate


@contextmanager
def comparable() -> Iterator[None]:
    """Disable the cycle collector, which would run at other moments, and oneDNN's LSTM.

    Reset TorchScript's executor, which treats a function differently from its second call on.
    """
    scripted: Any = torch.jit._state._python_cu
    for function in scripted.get_functions():
        function._debug_flush_compilation_cache()
    gc.disable()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(True)
        gc.enable()


# ---- the trace -----------------------------------------------------------------------------------


def traced_events(build: Build, options: TraceOptions) -> list[Event]:
    """Trace the step on fake CPU tensors and read the same events from the graph."""
    with comparable():
        return events_of(trace(build, gpu=None, options=options))


def events_of(graph: StepGraph) -> list[Event]:
    """The births and deaths of a graph's storages within iterations, by tick."""
    moments: list[tuple[int, str, int]] = []
    for storage in graph.storages:
        if storage.device == graph.device:
            moments.append((storage.birth, "alloc", storage.id))
            if storage.death is not None:
                moments.append((storage.death, "free", storage.id))
    numbers: dict[int, int] = {}
    events: list[Event] = []
    timeline = _Timeline(graph)
    for tick, kind, number in sorted(moments):
        step = timeline.step_at(tick)
        if step == BUILDING:
            continue
        if kind == "alloc":
            numbers[number] = len(numbers)
        nbytes = graph.storages[number].nbytes
        events.append(Event(step, kind, nbytes, numbers.get(number), timeline.op_at(tick)))
    return events


class _Timeline:
    """Finds the iteration and the operation of a tick; ticks must be queried in order."""

    def __init__(self, graph: StepGraph) -> None:
        self._graph = graph
        self._phase = 0
        self._op = -1

    def step_at(self, tick: int) -> int:
        phases = self._graph.phases
        while self._phase + 1 < len(phases) and phases[self._phase + 1].start <= tick:
            self._phase += 1
        return phases[self._phase].step

    def op_at(self, tick: int) -> str:
        ops = self._graph.ops
        while self._op + 1 < len(ops) and ops[self._op + 1].tick <= tick:
            self._op += 1
        return ops[self._op].target


# ---- both ----------------------------------------------------------------------------------------


def assert_agree(real: Recording, traced: list[Event]) -> None:
    """Fail with the first event that differs and its neighbours."""
    assert real.events, "the real run allocated nothing"
    assert_equal(*sorted_where_unordered(real, traced))


def sorted_where_unordered(real: Recording, traced: list[Event]) -> tuple[list[Event], list[Event]]:
    """Both sequences, with those ranges sorted whose order varies between runs."""
    ordered, other = list(real.events), list(traced)
    for stretch in real.unordered:
        for events in (ordered, other):
            events[stretch.start : stretch.stop] = sorted(
                events[stretch.start : stretch.stop], key=_by_block
            )
    return ordered, other


def _by_block(event: Event) -> tuple[int, int, int]:
    return event.step, -1 if event.block is None else event.block, event.nbytes or 0


def assert_equal(real: list[Event], traced: list[Event]) -> None:
    for i, (wanted, got) in enumerate(zip_longest(real, traced)):
        if not _is_same(wanted, got):
            raise AssertionError(
                f"event {i} of {len(real)} differs\n"
                f"real:  {wanted}\ntrace: {got}\n{_around(real, i, 'real')}\n"
                f"{_around(traced, i, 'trace')}"
            )


def _is_same(wanted: Event | None, got: Event | None) -> bool:
    if wanted is not None and got is not None and wanted.nbytes is None:
        return wanted == replace(got, nbytes=None)
    return wanted == got


def _around(events: list[Event], i: int, name: str) -> str:
    first = max(i - NEIGHBOURS, 0)
    lines = [
        f"{'>' if first + n == i else ' '} {event}"
        for n, event in enumerate(events[first : i + NEIGHBOURS + 1])
    ]
    return "\n".join([f"{name}:", *lines])
