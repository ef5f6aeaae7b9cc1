"""A program's threads end with it as under Python: it waits for them, and one stops all."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.places import ROOT

TRAINING = """\
import queue, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
import torch

done = queue.Queue()

def train(steps):
    time.sleep(0.2)  # the main thread has come to its end, or waits
    model = torch.nn.Linear(1000, 1000, device="cuda")
    for _ in range(steps):
        model(torch.rand(2, 1000, device="cuda")).sum().backward()
    done.put(steps)
"""


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`graphmem run … SCRIPT` in a process of its own, which must end within a minute or two."""

    def run(
        ending: str, *options: str, shell: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "script.py"
        script.write_text(TRAINING + ending)
        line = [sys.executable, "-m", "graphmem", "run", *options, "--format", "json"]
        line += ["-o", str(tmp_path / "report.json"), str(script)]
        return subprocess.run(
            [*shell, *line], check=False, cwd=ROOT, capture_output=True, text=True, timeout=150
        )

    return run


@pytest.fixture
def report(tmp_path: Path) -> Callable[[], Any]:
    """What the command has written."""
    return lambda: json.loads((tmp_path / "report.json").read_text())


@pytest.mark.parametrize(
    "start",
    [
        "threading.Thread(target=train, args=(5,)).start()\n",
        pytest.param(  # not shut down
            "pool = ThreadPoolExecutor(1)\nfor n in (2, 3): pool.submit(train, n)\n",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "threading.Thread(target=train, args=(5,)).start()\nsys.exit(0)\n",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_python_waits_for_threads(command: Any, report: Any, start: str) -> None:
    outcome = command(start)

    assert outcome.returncode == 0, outcome.stderr
    assert len(report()["steps"]) == 5
    assert "Exception in thread" not in outcome.stderr


@pytest.mark.slow
def test_a_daemon_that_outlives_the_program_ends_silently(command: Any) -> None:
    outcome = command(
        "threading.Thread(target=train, args=(10**6,), daemon=True).start()\ntime.sleep(1)\n"
    )

    assert outcome.returncode == 0, outcome.stderr
    assert "Exception in thread" not in outcome.stderr


@pytest.mark.parametrize("ending", ["print(done.get())\n", ""])
def test_steps_in_a_thread_are_limited_though_the_main_thread_waits(
    command: Any, report: Any, ending: str
) -> None:
    start = "threading.Thread(target=train, args=(5,)).start()\n"
    outcome = command(start + ending, "--max-steps", "3")

    assert outcome.returncode == 0, outcome.stderr
    assert len(report()["steps"]) == 3
    assert "graphmem: stopped by --max-steps\n" in outcome.stderr
    assert "Traceback" not in outcome.stderr


@pytest.mark.slow
def test_so_are_those_of_a_command_in_the_background(command: Any) -> None:
    """A shell has it ignore Ctrl-C."""
    outcome = command(
        "threading.Thread(target=train, args=(5,)).start()\nprint(done.get())\n",
        *("--max-steps", "3"),
        shell=["sh", "-c", '"$@" & wait $!', "sh"],
    )

    assert outcome.returncode == 0, outcome.stderr
    assert "graphmem: stopped by --max-steps\n" in outcome.stderr


@pytest.mark.slow
def test_a_thread_that_waits_does_not_keep_a_stopped_program(command: Any) -> None:
    outcome = command("threading.Thread(target=done.get).start()\ntrain(5)\n", "--max-steps", "3")

    assert outcome.returncode == 0, outcome.stderr
    assert "graphmem: stopped by --max-steps\n" in outcome.stderr


def test_a_refusal_in_a_thread_is_the_programs(command: Any) -> None:
    outcome = command(
        "def branch():\n"
        "    model = torch.nn.Linear(1000, 1000, device='cuda')\n"
        "    x = model(torch.rand(2, 1000, device='cuda')).sum()\n"
        "    done.put(1 if x > 0.5 else 2)\n"
        "threading.Thread(target=branch).start()\n"
        "print(done.get())\n"
    )

    assert outcome.returncode == 2
    assert "error: the step branches on the value of a tensor" in outcome.stderr
    assert "Traceback" not in outcome.stderr
