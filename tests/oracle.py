"""The CPU oracle: the allocations and frees of a real run beside those of a trace.

A real run is the same `TrainingLoop` on real CPU tensors, eager, with PyTorch's own C++ engine. A
dispatch mode sees every tensor that an operation returns and keeps a weak reference to its storage:
a storage seen for the first time is an allocation, and the death of the weak reference is a free.
The trace is that of `graphmem.trace` on fake CPU tensors. `docs/exactness.md` says what is
compared and what is not.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from graphmem import TrainingStep
from graphmem.graph import StepGraph
from graphmem.trace import Options, trace
from graphmem.trace.loop import TrainingLoop

aten = torch.ops.aten
NEIGHBOURS = 6
BUILDING = -1


@dataclass(frozen=True)
class Event:
    """One allocation or free.

    Attributes:
        step: the iteration; BUILDING before the first one.
        kind: "alloc" or "free".
        nbytes: requested bytes of the storage.
        block: which one: allocations of the iterations are counted from 0; None for a storage that
            is older than the first iteration.
        where: the operation that allocated it, or after whose begin it was freed: not compared.
    """

    step: int
    kind: str
    nbytes: int
    block: int | None
    where: str = field(compare=False)

    def __str__(self) -> str:
        block = "from build" if self.block is None else f"#{self.block}"
        return f"step {self.step}: {self.kind} {self.nbytes} B {block} ({self.where})"


# ---- the real run ------------------------------------------------------------------------------


class _Block(weakref.ref[torch.UntypedStorage]):
    """A storage of the real run, as it was when it was seen."""

    __slots__ = ("key", "nbytes", "number")
    key: int
    nbytes: int
    number: int | None


class RealRun(TorchDispatchMode):
    """Sees the results of every operation, and when their storages die.

    Args:
        selected: how many elements `nonzero` finds, as a fraction, in place of what the data say.
            The trace takes the same for granted (`TrainingStep.assume`).
    """

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.step = BUILDING
        self.selected: float | None = None
        self._where = "build"
        self._allocations = 0
        self._blocks: dict[int, _Block] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self._where = str(func)
        if func is aten.nonzero.default and self.selected is not None:
            result = self._select(args[0], self.selected)
        else:
            result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            self._observe(tensor)
        return result

    def _select(self, mask: torch.Tensor, fraction: float) -> torch.Tensor:
        return torch.zeros(round(fraction * mask.numel()), mask.dim(), dtype=torch.int64)

    def _observe(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        known = self._blocks.get(storage._cdata)
        nbytes = storage.nbytes()
        if (known is None and not nbytes) or (known is not None and known.nbytes == nbytes):
            return
        block = _Block(storage, self._freed)
        block.key, block.nbytes, block.number = storage._cdata, nbytes, None
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
            event = Event(self.step, kind, block.nbytes, block.number, self._where)
            self.events.append(event)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


def real_events(build: Callable[[], TrainingStep], options: Options) -> list[Event]:
    """Run the step on the CPU and write down what its storages did."""
    with _without_collector(), RealRun() as run:
        iterate = _iterate_of(build(), run, options)
        for run.step in range(options.steps):
            iterate()
        return list(run.events)


def _iterate_of(step: TrainingStep, run: RealRun, options: Options) -> Callable[[], Any]:
    run.selected = step.assume.get("nonzero")
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
def _without_collector() -> Iterator[None]:
    """Cycles of earlier tests are collected before, and none during the run."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# ---- the trace -----------------------------------------------------------------------------------


def traced_events(build: Callable[[], TrainingStep], options: Options) -> list[Event]:
    """Trace the step on fake CPU tensors and read the same events from the graph."""
    gc.collect()
    return events_of(trace(build, gpu=None, options=options))


def events_of(graph: StepGraph) -> list[Event]:
    """Births and deaths of a graph's storages by tick, those of the iterations."""
    moments: list[tuple[int, str, int]] = []
    for storage in graph.storages:
        if storage.device == graph.device:
            moments.append((storage.birth, "alloc", storage.id))
            if storage.death is not None:
                moments.append((storage.death, "free", storage.id))
    numbers: dict[int, int] = {}
    events: list[Event] = []
    timeline = _Timeline(graph)
    for tick, kind, id in sorted(moments):
        step = timeline.step_at(tick)
        if step == BUILDING:
            continue
        if kind == "alloc":
            numbers[id] = len(numbers)
        nbytes = graph.storages[id].nbytes
        events.append(Event(step, kind, nbytes, numbers.get(id), timeline.op_at(tick)))
    return events


class _Timeline:
    """Which iteration and which operation a tick belongs to; ticks are asked in order."""

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


def assert_agree(real: list[Event], traced: list[Event]) -> None:
    """Fail with the first event that differs, and its neighbours on both sides."""
    assert real, "the real run allocated nothing"
    for i, (wanted, got) in enumerate(zip_longest(real, traced)):
        if wanted != got:
            raise AssertionError(
                f"event {i} of {len(real)} differs\n"
                f"real:  {wanted}\ntrace: {got}\n{_around(real, i, 'real')}\n"
                f"{_around(traced, i, 'trace')}"
            )


def _around(events: list[Event], i: int, name: str) -> str:
    first = max(i - NEIGHBOURS, 0)
    lines = [
        f"{'>' if first + n == i else ' '} {event}"
        for n, event in enumerate(events[first : i + NEIGHBOURS + 1])
    ]
    return "\n".join([f"{name}:", *lines])
