"""A script that starts its training in another process, which has no virtual card."""

from __future__ import annotations

import sys
from collections.abc import Callable
from multiprocessing import active_children
from pathlib import Path

import pytest

from tests.conftest import Outcome

STARTS = (
    "import subprocess\n"
    "subprocess.run(['accelerate', 'launch', '--num-processes', '2', '-m', 'trainer', 'a.yml'])\n"
)
TOLD = (
    "it started accelerate, in a process that has no virtual card; name what that runs: "
    "graphmem run --nproc-per-node 2 -m trainer a.yml"
)


@pytest.fixture
def started(
    run_graphmem: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[str], Outcome]:
    """Runs a script in a place where `accelerate` does nothing."""
    launcher = tmp_path / "accelerate"
    launcher.write_text("#!/bin/sh\n")
    launcher.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def run(text: str) -> Outcome:
        script = tmp_path / "script.py"
        script.write_text(text)
        return run_graphmem("run", str(script))

    return run


def test_what_it_starts_is_named(started: Callable[[str], Outcome]) -> None:
    outcome = started(STARTS)

    assert outcome.exit_code == 0
    assert f"graphmem: nothing ran on the card; {TOLD}\n" in outcome.stderr


def test_ranks_that_a_program_starts_as_torchrun_does_are_counted(
    started: Callable[[str], Outcome],
) -> None:
    """As `tune run` and `fabric run` do; the first line of their error is a row of `=`."""
    outcome = started(
        "import os, subprocess, sys\n"
        "ranks = {**os.environ, 'RANK': '0', 'LOCAL_WORLD_SIZE': '2'}\n"
        "subprocess.run([sys.executable, '-u', 'trainer.py', '--epochs', '1'], env=ranks)\n"
        "raise RuntimeError('\\n====\\ntrainer.py FAILED\\n----')\n"
    )

    assert outcome.exit_code == 1
    assert "graphmem: ended by RuntimeError: trainer.py FAILED; it started " in outcome.stderr
    told = "name what that runs: graphmem run --nproc-per-node 2 trainer.py --epochs 1\n"
    assert told in outcome.stderr


def test_an_error_comes_first(started: Callable[[str], Outcome]) -> None:
    outcome = started(f"{STARTS}raise ValueError('no model.')\n")

    assert outcome.exit_code == 1
    assert f"graphmem: ended by ValueError: no model; {TOLD}\n" in outcome.stderr


def test_an_error_without_a_message_is_its_name(started: Callable[[str], Outcome]) -> None:
    outcome = started("assert 0\n")

    assert outcome.exit_code == 1
    assert "graphmem: ended by AssertionError\n" in outcome.stderr


def test_a_script_that_uses_the_card_itself_is_told_nothing(
    started: Callable[[str], Outcome],
) -> None:
    outcome = started(f"{STARTS}import torch\ntorch.ones(3, device='cuda')\n")

    assert "it started" not in outcome.stderr


@pytest.mark.parametrize("command", ["'true', shell=True", "['python', '-c', '']"])
def test_other_programs_are_no_launchers(started: Callable[[str], Outcome], command: str) -> None:
    """Nor is Python itself, as jsonargparse asks it for `sys.path`."""
    outcome = started(f"import subprocess\nsubprocess.run({command})\n")

    assert "it started" not in outcome.stderr


def test_a_function_in_another_process_is_named(started: Callable[[str], Outcome]) -> None:
    """As I-JEPA's main.py starts its training."""
    outcome = started(
        "from multiprocessing import Process\n\ndef train(rank):\n    pass\n\n"
        "process = Process(target=train, args=(0,))\nprocess.start()\nprocess.join()\n"
    )

    assert outcome.exit_code == 0
    assert "nothing ran on the card; it called train (" in outcome.stderr
    assert "script.py:3) in another process, which has no virtual card" in outcome.stderr


def test_processes_of_a_stopped_program_end_with_it(
    run_graphmem: Callable[..., Outcome], tmp_path: Path
) -> None:
    """As TorchRL's environments: each waits for what their parent sends, and Python for each."""
    script = tmp_path / "script.py"
    script.write_text(
        "from concurrent.futures import ProcessPoolExecutor\n"
        "from multiprocessing import Pipe, Process\n"
        "import torch\n"
        "ours, theirs = Pipe()\n"
        "Process(target=theirs.recv).start()\n"
        "pool = ProcessPoolExecutor(1)\n"
        "pool.submit(abs, 1).result()\n"
        "for _ in range(2):\n"
        "    torch.nn.Linear(4, 4, device='cuda')(torch.ones(4, device='cuda')).sum().backward()\n"
    )
    outcome = run_graphmem("run", "--max-steps", "1", str(script))

    for each in active_children():
        each.join(10)
    assert active_children() == []
    assert "graphmem: stopped by --max-steps\n" in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_code_that_a_program_compiles_for_the_card_is_said_not_to_run(
    started: Callable[[str], Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As RWKV-LM compiles its kernels; without a compiler `load` ends before it starts one."""
    monkeypatch.setattr("torch.utils.cpp_extension.CUDA_HOME", None)
    outcome = started(
        "from torch.utils.cpp_extension import load\n"
        "load(name='kernel', sources=['kernel.cpp', 'kernel.cu'])\n"
    )

    assert outcome.exit_code == 1
    assert "CUDA code that a program compiles does not run on the virtual card" in outcome.stderr


NVML = """
class NVMLError(Exception):
    value = 3
    def __eq__(self, other):
        return self.value == other.value

def begin():
    try:
        raise OSError
    except OSError:
        raise NVMLError("Not Supported")
"""


@pytest.mark.parametrize(
    ("name", "text", "hint"),
    [
        ("warp", "def begin():\n    return [][0]\n", "warp asks NVIDIA's driver for a card"),
        ("pynvml", NVML, "NVML on the virtual card knows memory"),
    ],
)
def test_a_library_that_asks_the_driver_is_said_to_find_no_card(
    name: str, text: str, hint: str, run_graphmem: Callable[..., Outcome], tmp_path: Path
) -> None:
    """TorchMD-Net's search for neighbours asks Warp; pynvml may ask for what no card here has."""
    (tmp_path / f"{name}.py").write_text(text)
    script = tmp_path / "script.py"
    script.write_text(f"import {name}\n{name}.begin()\n")
    outcome = run_graphmem("run", str(script))
    assert outcome.exit_code == 1
    assert hint in outcome.stderr


def test_deepspeed_without_a_launcher_is_told_what_sets_its_rank(
    run_graphmem: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`mpi_discovery` of deepspeed/comm/comm.py: it asks MPI where RANK is not set."""
    asking = tmp_path / "deepspeed" / "comm" / "comm.py"
    asking.parent.mkdir(parents=True)
    asking.write_text("from mpi4py import MPI")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    outcome = run_graphmem("run", str(asking))
    assert "where no launcher has set RANK: --nproc-per-node 1 sets it" in outcome.stderr


def test_a_group_without_a_launcher_fails_as_on_a_card(
    started: Callable[[str], Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`_env_rendezvous_handler`; RT-DETR catches the error, and trains without DDP."""
    monkeypatch.delenv("RANK", raising=False)
    lines = ("    dist.init_process_group('nccl')\n", "    print('alone:', error)\n")
    caught = f"try:\n{lines[0]}except ValueError as error:\n{lines[1]}"

    outcome = started(f"import torch.distributed as dist\n{caught}{lines[0].lstrip()}")

    lacks = "env:// rendezvous: environment variable RANK expected, but not set"
    assert f"alone: Error initializing torch.distributed using {lacks}\n" == outcome.stdout
    assert outcome.exit_code == 1
    assert "no launcher has set it: --nproc-per-node 1 does" in outcome.stderr
