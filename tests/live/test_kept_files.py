"""What a script writes and removes does not cost the weights of an earlier run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file

import graphmem
from graphmem.cli.signals import Terminated, orderly_termination

SETTING_UP = """
import io, os, pathlib, shutil
import torch
from safetensors.torch import save_file

net = torch.nn.Linear(4, 2).cuda()
weights = net.state_dict()
"""
CASES = {
    "saved": 'torch.save(weights, "last.pt")',
    "copied to the host": 'torch.save({n: w.cpu() for n, w in weights.items()}, "last.pt")',
    "through a link": 'torch.save(weights, "link.pt")',
    "safetensors": 'save_file(weights, "weights.safetensors")',
    "replaced": """
torch.save(weights, "a.tmp")
os.replace("a.tmp", "last.pt")
""",
    "as Lightning does": """
buffer = io.BytesIO()
torch.save(weights, buffer)
with open("last.pt", "wb") as file:
    file.write(buffer.getvalue())
""",
    "rotated": """
for _ in range(3):
    os.rename("last.pt", "previous.pt")
    torch.save(weights, "last.pt")
""",
    "removed": """
shutil.rmtree("step-5")
os.remove("last.pt")
pathlib.Path("weights.safetensors").unlink()
torch.save(weights, "new.pt")
""",
    "a folder replaced": """
os.makedirs("step-5.tmp")
torch.save(weights, "step-5.tmp/weights.pt")
shutil.rmtree("step-5")
os.rename("step-5.tmp", "step-5")
""",
    "a folder renamed": """
os.rename("step-5", "previous")
os.makedirs("step-5")
torch.save(weights, "step-5/weights.pt")
""",
    "folders rotated": """
for _ in range(3):
    shutil.rmtree("previous", ignore_errors=True)
    os.rename("step-5", "previous")
    os.makedirs("step-5")
    torch.save(weights, "step-5/weights.pt")
    pathlib.Path("step-5/config.json").write_text("{}")
""",
}
OF_THE_RUN = """
for _ in range(2):
    torch.save(weights, "new.pt")
    save_file(weights, "new.safetensors")
    torch.save(weights, "gone.pt")
    os.remove("gone.pt")
os.rename("logs", "logs of before")
os.remove("done.txt")
for name in ("log.txt", "done.txt"):
    pathlib.Path(name).write_text("of this run")
assert torch.load("new.pt")["weight"].is_cuda
"""
TRAINED = {"weight": torch.full((2, 4), 0.5), "bias": torch.ones(2)}


class Run(NamedTuple):
    """One run of all cases, each in a folder of its own.

    Attributes:
        folder: holds those folders.
        before: what was in them before.
        report: what the command says, in one line.
    """

    folder: Path
    before: dict[Path, bytes]
    report: str


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run a script that does in turn what scripts do to their files."""
    folder = tmp_path_factory.mktemp("project")
    script = [SETTING_UP]
    for name, case in {**CASES, "its own": OF_THE_RUN}.items():
        (folder / name).mkdir()
        _leave_an_earlier_run(folder / name)
        script.append(f"os.chdir({str(folder / name)!r})\n{case}")
    before = _contents(folder)
    (folder / "train.py").write_text("\n".join(script))
    command = [sys.executable, "-m", "graphmem", "run", "--gpu", "t4", "train.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Run(folder, before, " ".join(done.stderr.split()))


@pytest.mark.parametrize("case", CASES)
def test_what_was_there_before_is_there_afterwards(case: str, run: Run) -> None:
    before = {
        file: held for file, held in run.before.items() if file.is_relative_to(run.folder / case)
    }
    assert len(before) == 8
    assert _contents(run.folder / case).items() >= before.items()


def test_the_report_names_what_was_kept(run: Run) -> None:
    for name in ("last.pt", "weights.safetensors", "step-5/weights.pt"):
        assert f"{name}, which was there before: kept as it was" in run.report
    assert "new.pt, which was there before" not in run.report
    assert not [*run.folder.parent.rglob(".graphmem-*")]


def test_what_the_script_makes_is_its_own(run: Run) -> None:
    folder = run.folder / "its own"
    assert not (folder / "gone.pt").exists()
    assert (folder / "log.txt").read_text() == "of this run"
    assert (folder / "logs of before/log.txt").read_text() == "of an earlier run"
    assert (folder / "done.txt").read_text() == "of this run"
    for made in (
        torch.load(folder / "new.pt", map_location="cpu"),
        load_file(folder / "new.safetensors"),
    ):
        assert made["weight"].shape == (2, 4)


@pytest.mark.usefixtures("hang_ups")
def test_a_terminal_that_hangs_up_leaves_the_files_of_before(tmp_path: Path) -> None:
    _leave_an_earlier_run(tmp_path)
    before = _contents(tmp_path)

    def hang_up_in_a_run() -> None:
        with orderly_termination(), graphmem.virtual_gpu("t4"):
            torch.save(torch.ones(3, device="cuda"), tmp_path / "last.pt")
            shutil.rmtree(tmp_path / "step-5")
            os.kill(os.getpid(), signal.SIGHUP)

    with pytest.raises(Terminated):
        hang_up_in_a_run()
    assert _contents(tmp_path) == before


def _leave_an_earlier_run(folder: Path) -> None:
    (folder / "step-5").mkdir()
    torch.save(TRAINED, folder / "last.pt")
    torch.save(TRAINED, folder / "step-5/weights.pt")
    save_file(TRAINED, folder / "weights.safetensors")
    (folder / "step-5/config.json").write_text("{}")
    (folder / "link.pt").symlink_to("last.pt")
    (folder / "logs").mkdir()
    for name in ("log.txt", "done.txt", "logs/log.txt"):
        (folder / name).write_text("of an earlier run")


def _contents(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_open_answers_as_pythons_does(tmp_path: Path) -> None:
    """VAR's launcher gives `print` more arguments only where `type(print)` is `type(open)`."""
    script = tmp_path / "asks.py"
    script.write_text(
        "import inspect, io, pickle, types\n"
        "print(type(print) != type(open), type(open) == type(print), len({type(open), type(id)}))\n"
        "print(isinstance(open, types.BuiltinFunctionType), inspect.isbuiltin(open))\n"
        "print(open.__module__, open.__name__, pickle.loads(pickle.dumps(open)) is io.open)\n"
    )
    answers = [
        subprocess.run(
            [sys.executable, *command, script], capture_output=True, text=True, check=True
        )
        for command in ([], ["-m", "graphmem", "run"])
    ]
    assert answers[0].stdout.startswith("False True 1\nTrue True\n")
    assert answers[1].stdout == answers[0].stdout
