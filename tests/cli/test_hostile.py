"""Hostile files and names: a one-line error and exit code 2, or shown as plain text."""

from __future__ import annotations

import csv
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from graphmem.cli.signals import Terminated, orderly_interruption, orderly_termination
from graphmem.gate.formats.markdown import escaped
from graphmem.plain_text import Console, plain_text, visible
from tests.conftest import Outcome
from tests.support.gate_project import TINY, Project

Run = Callable[..., Outcome]

_NAMED = """\
import torch

def build():
    model = torch.nn.Sequential()
    model.add_module({name!r}, torch.nn.Linear(64, 64))
    return model, (torch.ones(4, 64),)
"""
_ESCAPES = "\x1b[2J\x1b]0;gone\x07\x9b31m\u202e\r"


def target(folder: Path, name: str) -> str:
    """A model with a module of that name."""
    path = folder / "named.py"
    path.write_text(_NAMED.format(name=name))
    return f"{path}:build"


@pytest.mark.parametrize("command", [("analyze",), ("analyze", "--format", "json"), ("graph",)])
def test_escape_sequences_in_names_are_written_out(
    command: tuple[str, ...], tmp_path: Path, run_graphmem: Run
) -> None:
    outcome = run_graphmem(*command, target(tmp_path, f"a{_ESCAPES}b"))

    assert outcome.exit_code == 0
    assert "\x1b" not in outcome.stdout + outcome.stderr
    assert "\x9b" not in outcome.stdout
    assert "\u202e" not in outcome.stdout


def test_escape_sequences_in_an_error_are_written_out(tmp_path: Path, run_graphmem: Run) -> None:
    path = tmp_path / "bad.py"
    path.write_text(f"def build():\n    raise ValueError({_ESCAPES!r})\n")

    outcome = run_graphmem("analyze", f"{path}:build")

    assert outcome.exit_code == 2
    assert "\x1b" not in outcome.stderr
    assert "\\u001b[2J" in outcome.stderr


def test_colours_of_the_console_itself_stay() -> None:
    console = Console(force_terminal=True, color_system="standard", width=40, highlight=False)
    with console.capture() as capture:
        console.print("\x1b[31mred", style="bold")

    assert capture.get() == "\x1b[1m\\u001b[31mred\x1b[0m\n"


def test_the_hundredth_line_is_no_emoji() -> None:
    """rich replaces `:100:` by an emoji."""
    shown = plain_text(lambda console: console.print("net.py:100: assuming loss = 1.0"))
    assert shown == "net.py:100: assuming loss = 1.0\n"


def test_a_json_document_still_means_the_same_once_controls_are_written_out() -> None:
    """U+009B begins an escape sequence, and JSON allows it unescaped."""
    import json

    document = json.dumps({"name": "\x9b31m\u202e"}, ensure_ascii=False)

    assert json.loads(visible(document)) == json.loads(document)


def test_markdown_mentions_nobody() -> None:
    assert "@team" not in escaped("ask @team")


def test_csv_cells_are_not_formulas(tmp_path: Path, run_graphmem: Run) -> None:
    output = tmp_path / "holders.csv"
    outcome = run_graphmem(
        "render", target(tmp_path, '=HYPERLINK("http://x")'), "--view", "holders", "-o", str(output)
    )
    if outcome.exit_code:
        outcome = run_graphmem(
            "render", target(tmp_path, '=HYPERLINK("http://x")'), "-o", str(output)
        )

    assert outcome.exit_code == 0, outcome.stderr
    cells = [cell for row in csv.reader(output.open()) for cell in row]
    assert any("HYPERLINK" in cell for cell in cells)
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]


_GARBAGE = {
    "empty": b"",
    "binary": bytes(range(256)),
    "not UTF-8": b"\xff\xfe = 1\n",
    "deep": b"a = " + b"[" * 100_000,
    "other fields": b'schema = "evil"\n[evil]\nx = 1\n',
}


@pytest.mark.parametrize("name", ["graphmem.toml", "graphmem.lock"])
@pytest.mark.parametrize("content", [*_GARBAGE.values()][1:], ids=[*_GARBAGE][1:])
def test_a_hostile_toml_or_lock_is_exit_code_2(
    name: str, content: bytes, tmp_path: Path, run_graphmem: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.py").write_text(TINY)
    (tmp_path / "graphmem.toml").write_text('[targets.one]\ntarget = "one.py:build"\n')
    (tmp_path / name).write_bytes(content)

    outcome = run_graphmem("check", "--no-cache")

    assert outcome.exit_code == 2, outcome.stderr
    assert outcome.stderr.startswith("error: ")
    assert len(outcome.stderr.splitlines()) <= 2


@pytest.mark.parametrize("content", _GARBAGE.values(), ids=_GARBAGE)
def test_a_hostile_case_file_is_exit_code_2(
    content: bytes, tmp_path: Path, run_graphmem: Run
) -> None:
    path = tmp_path / "case.toml"
    path.write_bytes(content)

    outcome = run_graphmem("verify", "--suite", "--cases", str(path))

    assert outcome.exit_code == 2
    assert len(outcome.stderr.splitlines()) <= 2


@pytest.mark.parametrize("content", _GARBAGE.values(), ids=_GARBAGE)
@pytest.mark.parametrize("name", ["report.json", "model.pt2"])
def test_a_hostile_report_or_exported_program_is_exit_code_2(
    name: str, content: bytes, tmp_path: Path, run_graphmem: Run
) -> None:
    path = tmp_path / name
    path.write_bytes(content)

    outcome = run_graphmem("diff", str(path), str(path))

    assert outcome.exit_code == 2
    assert len(outcome.stderr.splitlines()) <= 2


@pytest.fixture
def project(tmp_path: Path) -> Project:
    config = '[targets.one]\ntarget = "one.py:build"\n'
    return Project.create(tmp_path / "project", one__py=TINY, graphmem__toml=config)


def cached(project: Project) -> bool:
    [result] = project.graphmem("check", "--format", "json").json()["results"]
    return bool(result["is_cached"])


@pytest.mark.slow
def test_a_cache_entry_tracked_by_git_is_not_trusted(project: Project) -> None:
    """A commit could ship the old code's report with it, and pass."""
    project.graphmem("check")
    assert cached(project)
    project.git("add", "--force", ".graphmem_cache")

    assert not cached(project)


@pytest.mark.slow
def test_a_world_writable_cache_entry_is_not_trusted(project: Project) -> None:
    project.graphmem("check")
    for entry in (project.root / ".graphmem_cache").rglob("*.json"):
        entry.chmod(0o666)

    assert not cached(project)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change a file's owner")
@pytest.mark.slow
def test_a_cache_entry_of_another_user_is_not_trusted(project: Project) -> None:
    project.graphmem("check")
    for entry in (project.root / ".graphmem_cache").rglob("*.json"):
        os.chown(entry, 12345, 12345)

    assert not cached(project)


def test_sigterm_ends_as_ctrl_c_does(tmp_path: Path) -> None:
    path = tmp_path / "slow.py"
    path.write_text(
        "import time, pathlib\ndef build():\n    pathlib.Path('on').touch()\n    time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "graphmem", "analyze", "slow.py:build", "-o", "out.txt"],
        cwd=tmp_path, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not (tmp_path / "on").exists() and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)

    assert process.wait(30) == 143
    assert "Traceback" not in (process.stderr.read() if process.stderr else "")
    assert {each.name for each in tmp_path.iterdir()} <= {"slow.py", "on", "__pycache__"}


@pytest.mark.slow
def test_a_second_sigterm_ends_a_program_that_swallows_the_first(tmp_path: Path) -> None:
    path = tmp_path / "deaf.py"
    path.write_text(
        "import time, pathlib\n"
        "for name in ('on', 'swallowed'):\n"
        "    try:\n        pathlib.Path(name).touch()\n        time.sleep(60)\n"
        "    except BaseException:\n        pass\n"
    )
    process = subprocess.Popen([sys.executable, "-m", "graphmem", "run", "deaf.py"], cwd=tmp_path)
    for name in ("on", "swallowed"):
        while not (tmp_path / name).exists() and process.poll() is None:
            time.sleep(0.1)
        time.sleep(0.6)  # two at once are one
        process.send_signal(signal.SIGTERM)

    assert process.wait(30) == -signal.SIGTERM


def test_two_sigterms_at_once_are_one() -> None:
    """`timeout` sends one to its child and one to its group."""
    with orderly_termination():
        with pytest.raises(Terminated):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow
def test_a_signal_to_the_group_is_no_error_of_a_data_loader(tmp_path: Path) -> None:
    """Its worker dies of it as well, which PyTorch's handler raises in whatever runs then."""
    (tmp_path / "train.py").write_text(
        "import pathlib, time, torch\n"
        "batches = iter(torch.utils.data.DataLoader(torch.ones(9, device='cpu'), num_workers=1))\n"
        "next(batches).cuda()\n"
        "pathlib.Path('on').touch()\n"
        "try:\n    time.sleep(60)\n"
        "finally:\n    time.sleep(1)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "graphmem", "run", "train.py"],
        cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    while not (tmp_path / "on").exists() and process.poll() is None:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGTERM)
    _, said = process.communicate(timeout=60)

    assert process.returncode == 130, said
    assert "DataLoader worker" not in said
    assert "peak 512 B allocated" in said


@pytest.mark.parametrize("home", ["/nonexistent", "/proc", None])
@pytest.mark.slow
def test_a_missing_or_read_only_home_does_not_matter(home: str | None, tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(TINY)
    environment = {key: value for key, value in os.environ.items() if key != "HOME"}
    done = subprocess.run(
        [sys.executable, "-m", "graphmem", "analyze", "tiny.py:build", "--steps", "1"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env=environment if home is None else {**environment, "HOME": home},
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("number", "handled", "error"),
    [
        (signal.SIGTERM, orderly_termination, Terminated),
        (signal.SIGHUP, orderly_termination, Terminated),
        (signal.SIGINT, orderly_interruption, KeyboardInterrupt),
    ],
    ids=["SIGTERM", "SIGHUP", "SIGINT"],
)
@pytest.mark.usefixtures("hang_ups")
def test_a_signal_that_arrives_in_a_callback_of_the_cycle_collector_counts(
    number: int,
    handled: Callable[[], AbstractContextManager[None]],
    error: type[KeyboardInterrupt],
) -> None:
    """Python prints and forgets what is raised there."""

    def send(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            os.kill(os.getpid(), number)

    with handled():
        gc.callbacks.append(send)
        gc.collect()
        gc.callbacks.remove(send)
        with pytest.raises(error):
            time.sleep(5)


def test_python_handles_ctrl_c_again_when_a_command_has_ended() -> None:
    before = signal.default_int_handler

    with orderly_interruption():
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler is before
