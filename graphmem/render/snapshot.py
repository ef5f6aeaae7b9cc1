"""A snapshot for PyTorch's memory viewer, in the format of `torch.cuda.memory._snapshot()`.

Frames tell more than those of a real snapshot: the user's line, the operation, the module and the
reason why the storage is alive. Sizes of allocations are requested bytes, as in PyTorch
(`record_trace` in c10/cuda/CUDACachingAllocator.cpp).

Missing: C++ frames and times; `time_us` counts ticks of the trace.
"""

from __future__ import annotations

import pickle
from bisect import bisect_right
from collections.abc import Iterator
from itertools import chain
from typing import Any

from graphmem.allocator.segment_info import torch_snapshot
from graphmem.allocator.settings import host_limits
from graphmem.analysis import Analysis
from graphmem.graph import StepGraph
from graphmem.render.lifetimes import Lifetime, Reasons, lifetimes

Frame = dict[str, str | int]
Entry = dict[str, Any]


def snapshot_bytes(analysis: Analysis) -> bytes:
    """The snapshot as a pickle of plain dictionaries."""
    return pickle.dumps(snapshot(analysis))


def snapshot(analysis: Analysis) -> dict[str, Any]:
    """The segments at the end of the trace, and every event that led there."""
    reasons = Reasons(analysis)
    frames = {
        life.storage.id: list(_frames(analysis.graph, life, reasons.of(life)))
        for life in lifetimes(analysis)
    }
    return {
        "segments": _segments(analysis, frames),
        "device_traces": [list(_entries(analysis, frames))],
        "external_annotations": [],
        "allocator_settings": host_limits(analysis.step.runtime.release),
    }


def _frames(graph: StepGraph, life: Lifetime, reason: str) -> Iterator[Frame]:
    """Frames, innermost first, without semicolons, at which flame graphs split a stack."""
    op = graph.op_of(life.storage)
    yield _frame("why", reason)
    if op is None:
        return
    yield _frame("operation", op.target.removesuffix(".default"))
    if op.source is not None:
        yield _frame(op.source.file, op.source.function, op.source.line)
    yield _frame("module", life.module or "(outside any module)")
    yield _frame("phase", str(graph.phases[op.phase].name))


def _frame(file: str, name: str, line: int = 0) -> Frame:
    return {"filename": file, "line": line, "name": name.replace(";", ",")}


def _segments(analysis: Analysis, frames: dict[int, list[Frame]]) -> list[dict[str, Any]]:
    timeline = analysis.timeline
    alive = {
        timeline.addresses[storage.id]: storage
        for storage in timeline.alive_at(timeline.moments[-1])
    }
    segments: list[dict[str, Any]] = torch_snapshot(timeline.segments)
    for segment in segments:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                block["frames"] = frames[alive[block["address"]].id]
    return segments


def _entries(analysis: Analysis, frames: dict[int, list[Frame]]) -> Iterator[Entry]:
    """One event for each allocation, two for each free, one for each new segment.

    And one for each segment that is freed when the program empties the cache.
    """
    timeline = analysis.timeline
    given_back = chain.from_iterable(timeline.given_back.values())
    closed = {address for action, address, _ in given_back if action == "segment_free"}
    starts = sorted({segment.address for segment in timeline.segments} | closed)
    opened = dict.fromkeys(starts, 0)
    reserved = 0
    for moment in timeline.moments:
        storage = moment.born or moment.died
        if storage is None:
            for action, address, size in timeline.given_back.get(moment.index, ()):
                yield _given_back(action, address, size, moment.tick)
                opened[starts[bisect_right(starts, address) - 1]] -= size
            reserved = moment.reserved
            continue
        address = timeline.addresses[storage.id]
        entry = {"stream": 0, "time_us": moment.tick, "frames": frames[storage.id]}
        grown, reserved = moment.reserved - reserved, moment.reserved
        if grown > 0:
            start = starts[bisect_right(starts, address) - 1]
            action = "segment_map" if opened[start] else "segment_alloc"
            yield {**entry, "action": action, "addr": start + opened[start], "size": grown}
            opened[start] += grown
        actions = ("alloc",) if moment.born else ("free_requested", "free_completed")
        for action in actions:
            yield {**entry, "action": action, "addr": address, "size": storage.nbytes}


def _given_back(action: str, address: int, size: int, tick: int) -> Entry:
    why = [_frame("why", "torch.cuda.empty_cache()")]
    event = {"action": action, "addr": address, "size": size}
    return {"stream": 0, "time_us": tick, "frames": why, **event}
