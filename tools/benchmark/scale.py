"""A long loop: a perceptron's iterations, and what each further operation takes.

    python -m tools.benchmark.scale ITERATIONS

is one run, in a process of its own. An operation's time and memory are those by which a run exceeds
the shortest; memory is the peak of the process's resident memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.benchmark.part import GPU, ROOT, Part, Row

ITERATIONS = (10, 100, 1000)
KIB = 1024


def rows(repeat: int) -> Iterator[Row]:
    """One run of each length."""
    del repeat  # the longest takes half a minute, and nothing is compared with it
    shortest: dict[str, Any] = {}
    for iterations in ITERATIONS:
        command = (sys.executable, "-m", "tools.benchmark.scale", str(iterations))
        printed = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},  # others would spin, and count
            check=True,
            capture_output=True,
            text=True,
        )
        run = json.loads(printed.stdout)
        shortest = shortest or run
        cells = (f"{iterations:,}", f"{run['operations']:,}", f"{run['seconds']:.1f} s")
        yield Row((*cells, *_of_each_further(run, shortest)), run)


def _of_each_further(run: dict[str, Any], shortest: dict[str, Any]) -> tuple[str, str]:
    if run is shortest:
        return "", ""
    seconds, resident, operations = (
        run[figure] - shortest[figure] for figure in ("seconds", "resident", "operations")
    )
    return f"{1e6 * seconds / operations:.0f} µs", f"{resident / operations:,.0f} bytes"


def run(iterations: int) -> dict[str, Any]:
    """Analyse a loop in this process."""
    from graphmem.analysis import Request, run_analysis
    from tools.benchmark.steps import perceptron

    start = time.process_time()
    analysed = run_analysis(perceptron, Request(gpu=GPU, steps=iterations))
    return {
        "iterations": iterations,
        "operations": len(analysed.step.graph.ops),
        "seconds": time.process_time() - start,
        "resident": _most_resident(),
    }


def _most_resident() -> int:
    """Bytes; `ru_maxrss` would begin with the memory of the process that started this one."""
    status = Path("/proc/self/status").read_text()
    return KIB * next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line)


SCALE = Part(
    ("iterations", "operations", "CPU time", "time of each further operation", "its memory"),
    rows,
    texts=0,
)

if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]))))
