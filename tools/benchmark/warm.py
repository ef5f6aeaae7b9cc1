"""A warm process: a target analysed again after a save, and the allocator's replay of a trace."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from graphmem.analysis import Request
from graphmem.caller import collect
from graphmem.gate.jobs import Job
from graphmem.gate.watching import Watcher
from graphmem.own_process import own_process
from graphmem.simulate import all_events, simulate
from tools.benchmark.part import GPU, Part, Row, seconds_of
from tools.benchmark.recording import run_traced
from tools.benchmark.steps import FIXTURES, ITERATIONS, decoder

LAYERS = 126


def rows(repeat: int) -> Iterator[Row]:
    """What `graphmem watch` does after a save, and a replay."""
    seconds = min(watch_seconds(repeat))
    yield Row(
        ("`watch`, GPT-2 small, from a save to the answer", f"{seconds:.2f} s", ""),
        {"what": "watch", "seconds": seconds},
    )
    graph = run_traced(partial(decoder, LAYERS))
    events = len(all_events(graph))
    seconds = min(seconds_of(partial(simulate, graph))[0] for _ in range(repeat))
    yield Row(
        (
            f"replay of a decoder of {LAYERS} layers, {events:,} events",
            f"{seconds:.2f} s",
            f"{60 * events / seconds / 1e6:.1f} million events a minute",
        ),
        {"what": "replay", "events": events, "seconds": seconds},
    )


def watch_seconds(repeat: int) -> list[float]:
    """CPU seconds in which `graphmem watch` analyses GPT-2 again, report included."""
    target = f"{FIXTURES / 'gpt2.py'}:build"
    watcher = Watcher(Job(target, FIXTURES, target, Request(gpu=GPU, steps=ITERATIONS)))
    seconds = []
    with own_process():
        watcher.analyse()
        for _ in range(repeat):
            collect()  # as while it waits
            seconds.append(seconds_of(watcher.analyse)[0])
    return seconds


WARM = Part(("what", "CPU time", "rate"), rows)
