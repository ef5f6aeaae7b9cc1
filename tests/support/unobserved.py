"""The allocations and frees of a real CPU run that no dispatch mode observes.

PyTorch's profiler sees them at the CPU allocator, so the engine runs exactly as for a user; for
example, it sums gradients in place. Other events are ignored: blocks too small to tell from
scalars, and memory that a kernel allocates and frees internally.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity

from graphmem.gpus import Gpu
from graphmem.trace import TraceOptions, trace
from tests.support.oracle import Build, Event, comparable, events_of

SMALLEST = 32
GENERATOR_STATE = 5056  # the CPU generator's state saved by checkpointing; no operation returns it
_FACTORIES = {"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::resize_"}
Ops = tuple[Any, ...]


def profiled_events(build: Build, steps: int) -> list[Event]:
    """Run a `step` callable and read the allocator's events."""
    with comparable():
        step = build().step
        assert step is not None
        activities = [ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
            for _ in range(steps):
                step()
    roots = profile.profiler.kineto_results.experimental_event_tree()
    found = sorted(_allocations(roots, ()), key=lambda found: found[0].start_time_ns)
    inner = _inner_blocks(found)
    return list(_events([pair for i, pair in enumerate(found) if i not in inner]))


def traced_events(build: Build, steps: int, gpu: Gpu | None = None) -> list[Event]:
    """The same events of a trace that predicts an unobserved run, on the CPU or a card."""
    with comparable():
        graph = trace(build, gpu=gpu, options=TraceOptions(steps=steps))
    numbers: dict[int | None, int] = {}
    events = [event for event in events_of(graph) if (event.nbytes or 0) >= SMALLEST]
    for event in events:
        if event.block is not None:
            numbers.setdefault(event.block, len(numbers))
    return [replace(event, step=0, block=numbers.get(event.block)) for event in events]


def _allocations(events: Any, ops: Ops) -> Iterator[tuple[Any, Ops]]:
    """Every allocation or free, with the enclosing operations, outermost first."""
    for event in events:
        if event.tag == _EventType.Allocation:
            yield event, ops
        is_op = event.tag == _EventType.TorchOp and event.name not in _FACTORIES
        yield from _allocations(event.children, (*ops, event) if is_op else ops)


def _inner_blocks(found: list[tuple[Any, Ops]]) -> set[int]:
    """The positions of allocations and frees within one kernel."""
    inner: set[int] = set()
    taken: dict[int, tuple[int, Ops]] = {}
    for i, (event, ops) in enumerate(found):
        fields = event.extra_fields
        if fields.alloc_size > 0:
            taken[fields.ptr] = i, ops
        elif fields.ptr in taken:
            start, makers = taken.pop(fields.ptr)
            common = [op for op, maker in zip(ops, makers, strict=False) if op.id == maker.id]
            if any(_is_kernel(op.name) for op in common):
                inner |= {start, i}
    return inner


@functools.cache
def _is_kernel(name: str) -> bool:
    """Whether an operation runs a kernel itself rather than other operations that a trace sees."""
    if not name.startswith("aten::"):
        return False
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return not any(
        has_kernel(overload, "CompositeImplicitAutograd")
        for overload in torch._C._dispatch_get_all_op_names()
        if overload.partition(".")[0] == name and "name" not in overload.lower()
    )


def _events(found: list[tuple[Any, Ops]]) -> Iterator[Event]:
    live: dict[int, int] = {}
    count = 0
    for event, ops in found:
        size, pointer = event.extra_fields.alloc_size, event.extra_fields.ptr
        where = ops[-1].name if ops else "-"
        if abs(size) < SMALLEST or abs(size) == GENERATOR_STATE:
            continue
        if size > 0:
            live[pointer] = count
            count += 1
            yield Event(0, "alloc", size, live[pointer], where)
        else:
            yield Event(0, "free", -size, live.pop(pointer, None), where)
