"""Run the tests on the installed torch and write its row of docs/versions.md.

    make test TORCH=2.15.0

A row says how many tests passed and failed, in how many recordings and printed figures this release
agrees with what the cases of `graphmem verify --suite` expect, and whether GPT-2's peak is the one
printed on an A100 with torch 2.0, by the CUDA rules of that release.
"""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/versions.md"
GPT2_PEAK = 23_513_265_152  # README.md; fixtures/recorded_nanogpt.py names its source
_PARALLEL = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")  # as the Makefile's
_COUNT = re.compile(r"(\d+) (passed|failed|skipped|errors?)\b")
_ROW = re.compile(r"\| (\d+\.\d+\.\d+) \|")


def main() -> int:
    """Run pytest with the command line's arguments; return its exit code."""
    tests, exit_code = _tests(sys.argv[1:])
    version, _, build = torch.__version__.partition("+")
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    row = f"| {version} | {_build(build)} | {tests} | {_cases()} | {_gpt2()} | {date} |"
    PAGE.write_text(with_row(PAGE.read_text(encoding="utf-8"), row), encoding="utf-8")
    print(row)
    return exit_code


def with_row(page: str, row: str) -> str:
    """The page with the row of this version replaced, rows sorted by version."""
    lines = page.splitlines()
    found = {_version(line): i for i, line in enumerate(lines) if _ROW.match(line)}
    version = _version(row)
    if version in found:
        lines[found[version]] = row
    else:
        older = [i for known, i in found.items() if known < version]
        lines.insert(max(older) + 1 if older else min(found.values()), row)
    return "\n".join(lines) + "\n"


def _version(row: str) -> tuple[int, ...]:
    match = _ROW.match(row)
    return tuple(map(int, match[1].split("."))) if match else ()


def _build(local: str) -> str:
    if local.startswith("cu"):
        return f"CUDA {local[2:-1]}.{local[-1]}{'' if torch.cuda.is_available() else ', no driver'}"
    return "CPU"


def _tests(arguments: list[str]) -> tuple[str, int]:
    command = [sys.executable, "-m", "pytest", *_PARALLEL, "-m", "not slow", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        last = ""
        for line in run.stdout:
            sys.stdout.write(line)
            last = line if line.strip() else last
    counts = [f"{count} {what}" for count, what in _COUNT.findall(last)]
    which = f" of {' '.join(arguments)}" if arguments else ""
    return ", ".join(counts) + which, run.returncode


def _cases() -> str:
    """The rows of `verify --suite` that are as expected, all traced by this release."""
    with tempfile.TemporaryDirectory() as no_environments:
        done = _graphmem("verify", "--suite", "--environments", no_environments)
    if done.returncode not in (0, 1):
        return f"exit code {done.returncode}"
    suite = json.loads(done.stdout)
    compared = [row for row in suite["suite"] if row["comparison"] is not None]
    kinds = {"recordings": compared, "figures": suite["printed"]}
    return ", ".join(
        f"{sum(not row['failed'] for row in rows)} of {len(rows)} {kind}"
        for kind, rows in kinds.items()
    )


def _gpt2() -> str:
    target = "fixtures/recorded_nanogpt.py:build"
    done = _graphmem("analyze", target, "--torch", "2.0")
    if done.returncode:
        return f"exit code {done.returncode}"
    peak = json.loads(done.stdout)["peak"]["allocated"]
    return "equal" if peak == GPT2_PEAK else f"{peak:,}"


def _graphmem(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "graphmem", *arguments, "--format", "json"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
