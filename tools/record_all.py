"""Record every line of a plan on one GPU, several processes at a time.

    python tools/record_all.py tools/recordings.txt -o OUT [--jobs 8]

A line is `NAME [KEY=VALUE ...] [ranks=N] TARGET ARGS...`; the rest goes to `tools/record_cuda.py`.
Several ranks share the card: each gets its own host name, because NCCL rejects two of one host.
Their output is in OUT/NAME.log; failures are listed at the end.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TOOL = Path(__file__).with_name("record_cuda.py")


def main() -> int:
    """Run the plan; the exit code is 1 if a line failed."""
    parser = argparse.ArgumentParser(description="Record every line of a plan on one GPU.")
    parser.add_argument("plan", type=Path, nargs="+")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--limit", type=float, default=150, help="time limit of a line, in seconds")
    parser.add_argument("--until", type=float, default=1e9, help="total time limit, in seconds")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    lines = [
        line
        for plan in options.plan
        for line in plan.read_text().splitlines()
        if line.strip() and not line.startswith("#")
    ]
    end = time.monotonic() + options.until
    with ThreadPoolExecutor(options.jobs) as pool:
        begun = [
            pool.submit(record, number, line, options.output, options.limit, end)
            for number, line in enumerate(lines)
        ]
        done = [each.result() for each in begun]
    failed = [line.split()[0] for line, worked in zip(lines, done, strict=True) if not worked]
    print(f"{len(lines) - len(failed)} recorded, {len(failed)} failed: {' '.join(failed)}")
    return 1 if failed else 0


def record(number: int, line: str, output: Path, limit: float, end: float) -> bool:
    """Record one line of the plan; return whether it succeeded."""
    name, *words = shlex.split(line)
    if time.monotonic() > end:
        (output / f"{name}.log").write_text("not started: out of time\n")
        return False
    environment = dict(os.environ)
    ranks = 0
    while "=" in words[0] and not words[0].startswith("-"):
        key, _, value = words.pop(0).partition("=")
        if key == "ranks":
            ranks = int(value)
        else:
            environment[key] = value
    environment.setdefault("TORCHINDUCTOR_CACHE_DIR", f"/tmp/inductor/{name}")
    command = [sys.executable, str(TOOL), "-o", str(output / name), *words]
    started = time.monotonic()
    with (output / f"{name}.log").open("w") as log:
        processes = [
            subprocess.Popen(
                command,
                env=environment | (rank_environment(rank, ranks, number) if ranks else {}),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            for rank in range(max(1, ranks))
        ]
        codes = []
        for process in processes:
            try:
                codes.append(process.wait(max(1, started + limit - time.monotonic())))
            except subprocess.TimeoutExpired:
                process.kill()
                codes.append(process.wait())
    print(f"{time.monotonic() - started:6.1f} s  {name}  {codes if any(codes) else ''}", flush=True)
    return not any(codes)


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
