"""How many popular models graphmem can analyse, and whether its predictions are right.

    python -m tools.breadth run [FAMILY | FAMILY/NAME …] [--out FILE] [--testers FOLDER] [--again]
    python -m tools.breadth table FILE … > docs/models.md

`run` writes a line of JSON for each case and resumes where it was stopped. A case is (1) a real
training step on the CPU, (2) `graphmem.analyze` of it for an A100, (3) the oracle: it compares the
real run's allocations, frees, saved tensors, gradients and optimizer state with those of a trace on
fake CPU tensors. Each runs in a separate process with a time limit.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

DEFAULT_OUT = Path("/tmp/breadth/results.jsonl")
LIMIT_SECONDS = 240  # of CPU time
_WAITING = 10  # times as long by wall clock, for a case that only waits


def main() -> None:
    """Run cases, or print the table of results."""
    options = _parsed()
    if options.command == "table":
        from tools.model_zoo.table import table

        print(table(_read(options.files)), end="")
        return
    os.nice(10)
    _warm_up(options.testers)
    done = set() if options.again else {_key(row) for row in _read([options.out])}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for case in _chosen(options.cases, options.testers):
        if (case.family, case.name) in done:
            continue
        row = {"family": case.family, "name": case.name, **_in_a_process(case, options.limit)}
        with options.out.open("a") as out:
            out.write(json.dumps(row) + "\n")
        print(_line(row), flush=True)


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("cases", nargs="*", help="families, or FAMILY/NAME; none: all")
    run.add_argument("--out", type=Path, default=DEFAULT_OUT)
    run.add_argument("--testers", type=Path, help="a copy of the library's tests/models")
    run.add_argument("--again", action="store_true", help="rerun cases that the file already has")
    run.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="CPU seconds for each case")
    table = commands.add_parser("table")
    table.add_argument("files", type=Path, nargs="+")
    return parser.parse_args()


def _chosen(wanted: list[str], testers: Path | None) -> Iterator[Any]:
    for case in all_cases(testers):
        names = (case.family, f"{case.family}/{case.name}")
        if not wanted or any(name in wanted for name in names):
            yield case


def all_cases(testers: Path | None = None) -> Iterator[Any]:
    """Every case."""
    from tools.model_zoo import constructs, libraries, transformers_models

    yield from transformers_models.cases(testers)
    yield from libraries.cases()
    yield from constructs.cases()


def _warm_up(testers: Path | None) -> None:
    """Import what all processes share; they are forked from this one."""
    import torch

    from tools.model_zoo import measuring  # noqa: F401

    if testers is not None:
        from tools.model_zoo.transformers_models import shared_testers

        shared_testers(testers)

    torch.set_num_threads(1)
    sys.modules["xformers"] = None  # type: ignore[assignment]  # open-llama would take it on the CPU


def _in_a_process(case: Any, limit: float) -> dict[str, Any]:
    """Run a case in a child; return what it reported before it ended or was killed."""
    context = multiprocessing.get_context("fork")
    ours, its = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(case, its, limit), daemon=True)
    child.start()
    its.close()
    row: dict[str, Any] = {}
    end = time.monotonic() + _WAITING * limit
    while True:
        if not ours.poll(max(end - time.monotonic(), 0)):
            row["ended"] = f"timed out after {_WAITING * limit:g} s"
            child.kill()
            break
        try:
            row.update(ours.recv())
        except EOFError:
            break
    child.join()
    if child.exitcode == -signal.SIGXCPU:
        row["ended"] = f"timed out after {limit:g} s of CPU time"
    elif child.exitcode and "ended" not in row:
        row["ended"] = f"exit {child.exitcode}"
    return row


def _child(case: Any, out: Connection, limit: float) -> None:
    from tools.model_zoo.measuring import measure

    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(used + limit), resource.RLIM_INFINITY))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for found in measure(case):
        out.send(found)


def _read(files: Iterable[Path]) -> list[dict[str, Any]]:
    """The last line of each case."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for file in files:
        if file.exists():
            for line in file.read_text().splitlines():
                row = json.loads(line)
                rows[_key(row)] = row
    return list(rows.values())


def _key(row: dict[str, Any]) -> tuple[str, str]:
    return row["family"], row["name"]


def _line(row: dict[str, Any]) -> str:
    name = f"{row['family']}/{row['name']}"
    if row.get("cpu") != "ok":
        return f"{name:44} no real step: {row.get('cpu_message', row.get('ended'))}"[:200]
    said = row.get("analysis", row.get("ended"))
    message = row.get("analysis_message") or row.get("difference") or row.get("oracle_message")
    return f"{name:44} {said}, oracle {row.get('agrees', '-')}: {message or ''}"[:300]


if __name__ == "__main__":
    main()
