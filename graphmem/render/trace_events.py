"""A trace for Perfetto and chrome://tracing: memory counters, phases, modules and operations.

The format is the Trace Event Format's JSON object
(https://perfetto.dev/docs/getting-started/other-formats). Without a GPU there are no times: one
microsecond stands for one tick of the trace.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import msgspec

from graphmem.analysis import Analysis
from graphmem.graph import Op

Event = dict[str, Any]

_PROCESS = 1
_PHASES, _MODULES, _OPERATIONS = 1, 2, 3
_ROWS = {_PHASES: "phases", _MODULES: "modules", _OPERATIONS: "operations"}


def trace_bytes(analysis: Analysis) -> bytes:
    """The trace as gzipped JSON, byte-identical for the same step."""
    return gzip.compress(msgspec.json.encode(trace(analysis)), mtime=0)


def trace(analysis: Analysis) -> dict[str, Any]:
    """The trace as the JSON object that viewers accept."""
    report = analysis.report
    events = [*_names(report.target), *_spans(analysis), *_counters(analysis)]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {"target": report.target, "gpu": report.runtime.title},
    }


def _names(target: str) -> Iterator[Event]:
    yield {"ph": "M", "pid": _PROCESS, "name": "process_name", "args": {"name": target}}
    for row, name in _ROWS.items():
        labels = {"pid": _PROCESS, "tid": row}
        yield {"ph": "M", **labels, "name": "thread_name", "args": {"name": name}}
        yield {"ph": "M", **labels, "name": "thread_sort_index", "args": {"sort_index": row}}


def _spans(analysis: Analysis) -> Iterator[Event]:
    graph = analysis.graph
    for phase in graph.phases:
        name = f"step {phase.step} {phase.name}" if phase.step >= 0 else str(phase.name)
        yield _span(_PHASES, name, phase.start, phase.end + 1)
    ends = [*(op.tick for op in graph.ops[1:]), graph.end]
    for (_, module), run in groupby(graph.ops, key=lambda op: (op.phase, op.module)):
        ops = list(run)
        if module:
            yield _span(_MODULES, module, ops[0].tick, ends[ops[-1].index])
    for op in graph.ops:
        yield _span(_OPERATIONS, op.target, op.tick, ends[op.index], _details(op))


def _span(row: int, name: str, start: int, end: int, details: Event | None = None) -> Event:
    return {
        "ph": "X",
        "pid": _PROCESS,
        "tid": row,
        "name": name,
        "ts": start,
        "dur": max(1, end - start),
        **({"args": details} if details else {}),
    }


def _details(op: Op) -> Event:
    found = {"module": op.module, "source": op.source, "autograd": op.autograd_node}
    return {name: str(value) for name, value in found.items() if value}


def _counters(analysis: Analysis) -> Iterator[Event]:
    for moment in analysis.timeline.moments:
        for name in ("allocated", "requested", "reserved"):
            yield {
                "ph": "C",
                "pid": _PROCESS,
                "name": name,
                "ts": moment.tick,
                "args": {"bytes": getattr(moment, name)},
            }
