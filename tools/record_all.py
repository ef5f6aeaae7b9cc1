"""Record every line of a plan on one GPU, several processes at a time.

    python tools/record_all.py tools/recordings.txt -o OUT [--jobs 8] [--preload torch,timm]

A line is `NAME [KEY=VALUE ...] [ranks=N] [gb=N] [limit=SECONDS] TARGET ARGS...`; the rest goes to
`tools/record_cuda.py`. Each line runs in a process forked from this one, which has imported the
preloaded modules, and not touched CUDA. Several ranks share the card: each gets its own host name,
because NCCL rejects two of one host. `gb` is what a line takes of the card, 2 if not said.
Output is in OUT/NAME.log, events in OUT/NAME.events.json.gz; failures are listed at the end, and
lines whose events are there are skipped.
"""

from __future__ import annotations

import argparse
import ctypes
import gzip
import importlib
import os
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tools import record_cuda

GB = 2.0
NOT_INITIALISED = 3  # CUDA_ERROR_NOT_INITIALIZED


@dataclass
class Line:
    """A line of the plan, and its processes once it runs."""

    name: str
    number: int
    environment: dict[str, str]
    ranks: int
    gb: float
    limit: float
    arguments: list[str]
    started: float = 0.0
    running: set[int] = field(default_factory=set)
    failed: bool = False


def main() -> int:
    """Run the plan; the exit code is 1 if a line failed."""
    parser = argparse.ArgumentParser(description="Record every line of a plan on one GPU.")
    parser.add_argument("plan", type=Path, nargs="+")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--limit", type=float, default=150, help="time limit of a line, in seconds")
    parser.add_argument("--until", type=float, default=1e9, help="total time limit, in seconds")
    parser.add_argument(
        "--room", type=float, default=60, help="GB of the card to fill (default: 60)"
    )
    parser.add_argument("--preload", default="torch", help="modules to import first")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + options.until
    for module in options.preload.split(","):
        with suppress(ImportError):
            importlib.import_module(module)
        if has_begun():
            parser.error(f"--preload {module} initialises CUDA, which a forked process cannot use")
    record_cuda.driver_version()  # asks a process of its own
    lines = [
        line for line in read(options.plan, options.limit) if not recorded(line, options.output)
    ]
    run(lines, options, end)
    failed = [line.name for line in lines if line.failed]
    print(f"{len(lines) - len(failed)} recorded, {len(failed)} failed: {' '.join(failed)}")
    return 1 if failed else 0


def has_begun() -> bool:
    """Whether this process has initialised CUDA (`cuDeviceGetCount` of the driver's API)."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != NOT_INITIALISED)


def read(plans: Sequence[Path], limit: float) -> Iterator[Line]:
    """The lines of the plans; `limit` is that of a line without one, in seconds."""
    texts = [text for plan in plans for text in plan.read_text().splitlines()]
    for number, text in enumerate(each for each in texts if each.strip() and each[0] != "#"):
        name, *words = shlex.split(text)
        settings: dict[str, str] = {}
        while "=" in words[0] and not words[0].startswith("-"):
            key, _, value = words.pop(0).partition("=")
            settings[key] = value
        ranks, gb = int(settings.pop("ranks", 0)), float(settings.pop("gb", GB))
        own_limit = float(settings.pop("limit", limit))
        settings.setdefault("TORCHINDUCTOR_CACHE_DIR", f"/tmp/inductor/{name}")
        yield Line(name, number, settings, ranks, gb, own_limit, words)


def recorded(line: Line, output: Path) -> bool:
    """Whether an earlier run recorded all its ranks."""
    return len(list(output.glob(f"{line.name}.*events.json.gz"))) >= max(1, line.ranks)


def run(lines: Sequence[Line], options: argparse.Namespace, end: float) -> None:
    """Start lines in order while there are jobs and room for them; wait for all."""
    waiting, running = list(lines), list[Line]()
    while waiting or running:
        now = time.monotonic()
        if now > end:
            for line in [*waiting, *running]:
                line.failed = True
            waiting.clear()
        jobs = options.jobs - sum(max(1, line.ranks) for line in running)
        room = options.room - sum(line.gb for line in running)
        for line in waiting:
            if running and (line.gb > room or max(1, line.ranks) > jobs):
                continue
            waiting.remove(line)
            running.append(line)
            start(line, options.output)
            break
        else:
            time.sleep(0.05)
        for line in list(running):
            if now > min(end, line.started + line.limit):
                stop(line)
            if ended(line):
                running.remove(line)
                seconds = now - line.started
                print(f"{seconds:6.1f} s  {line.name}{'  failed' * line.failed}", flush=True)


def start(line: Line, output: Path) -> None:
    """Fork its processes."""
    line.started = time.monotonic()
    (output / f"{line.name}.log").unlink(missing_ok=True)
    for rank in range(max(1, line.ranks)):
        process = os.fork()
        if process == 0:
            os._exit(record(line, rank, output))
        line.running.add(process)


def record(line: Line, rank: int, output: Path) -> int:
    """In a forked process: record, with its output in the line's log; return the exit code."""
    os.setpgid(0, 0)
    log = os.open(output / f"{line.name}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(line.environment)
    if line.ranks:
        os.environ.update(rank_environment(rank, line.ranks, line.number))
    code = 1
    try:
        code = record_cuda.main(["--no-snapshot", "-o", str(output / line.name), *line.arguments])
    except SystemExit as stop_:
        print(stop_)
    except BaseException:  # noqa: BLE001 - a process that was forked must not return
        traceback.print_exc()
    for path in output.glob(f"{line.name}.*events.json"):
        if line.ranks == 0 or f".rank{rank}." in path.name:
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def stop(line: Line) -> None:
    """Kill its processes, with those that they started."""
    line.failed = True
    for process in line.running:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process, signal.SIGKILL)


def ended(line: Line) -> bool:
    """Whether all its processes have ended."""
    for process in list(line.running):
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            line.running.discard(process)
            line.failed |= status != 0
    return not line.running


def rank_environment(rank: int, ranks: int, number: int) -> dict[str, str]:
    """The variables `torchrun` sets, and those that let NCCL share a card."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(21000 + 7 * number),
        "NCCL_HOSTID": f"host{rank}",
        "NCCL_SOCKET_IFNAME": "lo",
    }


if __name__ == "__main__":
    sys.exit(main())
