"""Messages between ranks: who is waited for, and when waiting is over."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from graphmem.live.several_ranks import outcomes
from graphmem.ranks import messages, orphans
from graphmem.ranks.error_messages import NeverSentError
from graphmem.ranks.messages import Messages, mark_ended, mark_started


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Messages:
    """Rank 0 of a job in the folder; another rank that it must start ends at once."""
    monkeypatch.setenv(messages.COMMAND, json.dumps(["true"]))
    monkeypatch.setenv(messages.FOLDER, str(tmp_path))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    return Messages()


def arrive(path: Path) -> None:
    """Write a message as a rank does, so that nobody reads half of it."""
    part = path.with_suffix(".part")
    part.write_text("[8]")
    part.rename(path)


def test_ranks_that_wait_for_each_other_in_a_circle_are_not_waited_for(
    waiting: Messages, tmp_path: Path
) -> None:
    """Rank 0 waits for 1, which waits for 2, which waits for 0; and 3 for 0, which has sent."""
    for rank in (1, 2, 3):
        mark_started(rank, tmp_path)
    (tmp_path / "1.waits").write_text("2-1.1")
    (tmp_path / "2.waits").write_text("0-2.1")
    with pytest.raises(NeverSentError):
        waiting.receive(waiting.next(1, 0), 1, 0)

    waiting.send(0, 3, [7])
    (tmp_path / "3.waits").write_text("0-3.1")
    threading.Timer(0.2, lambda: arrive(tmp_path / "3-0.1")).start()

    assert waiting.receive(waiting.next(3, 0), 3, 0) == [8]


def test_a_slow_sender_is_waited_for_and_told(
    waiting: Messages,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(messages, "_LONG", 0.1)
    mark_started(3, tmp_path, os.getpid())
    threading.Timer(0.5, lambda: arrive(tmp_path / "3-0.1")).start()

    assert waiting.receive(waiting.next(3, 0), 3, 0) == [8]
    assert "graphmem: rank 0 waits for rank 3, which still runs" in capsys.readouterr().err


def test_a_board_is_read_of_ranks_beside_this_one(
    waiting: Messages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 has left something, 2 has ended, 3 does not run."""
    monkeypatch.setenv(messages.BESIDE, "0,1,2")
    here = Messages()
    for rank in (1, 2):
        mark_started(rank, tmp_path)
    mark_ended(2, tmp_path)
    (tmp_path / "1-board.1").write_text("[8]")

    read = [here.read(here.next(rank, "board"), rank, 0) for rank in (1, 2, 3)]

    assert read == [[8], None, None]
    assert [here.are_beside(ranks) for ranks in ([0, 2], [0, 3])] == [True, False]
    assert (tmp_path / "1-board.1").exists()  # for others


def test_a_rank_that_starts_after_its_helper_ended_has_not_ended(
    waiting: Messages, tmp_path: Path
) -> None:
    mark_started(3, tmp_path, 1)
    mark_ended(3, tmp_path)
    mark_started(3, tmp_path)

    assert not (tmp_path / "3.ended").exists()


def test_a_killed_helper_of_another_rank_is_not_waited_for(
    waiting: Messages, tmp_path: Path
) -> None:
    begun = time.monotonic()
    with subprocess.Popen(["sleep", "60"]) as helper:
        mark_started(3, tmp_path, helper.pid)
        helper.kill()  # its exit code is asked for at the end

        with pytest.raises(NeverSentError):
            waiting.receive(waiting.next(3, 0), 3, 0)

    assert time.monotonic() - begun < 2.5


def test_a_helper_that_did_not_reach_its_end_may_be_started_again(
    waiting: Messages, tmp_path: Path
) -> None:
    with pytest.raises(NeverSentError):
        waiting.receive(waiting.next(3, 0), 3, 0)
    assert (tmp_path / "3.started").exists()

    waiting.close()

    assert not (tmp_path / "3.started").exists()


@pytest.mark.parametrize("is_helped", [False, True])
def test_a_message_is_deleted_unless_another_process_may_read_it(
    waiting: Messages, tmp_path: Path, is_helped: bool
) -> None:
    if is_helped:
        (tmp_path / "0.helped").touch()
    waiting.send(3, 0, [7])

    assert waiting.receive("3-0.1", 3, 0) == [7]
    assert (tmp_path / "3-0.1").exists() == is_helped


def test_a_helper_ends_with_its_starter(tmp_path: Path) -> None:
    """A process that ends at once starts one that would run for a minute."""
    helper = f"import runpy, time; runpy.run_path({orphans.__file__!r})['end_with_starter']()"
    starter = (
        "import os, subprocess, sys\n"
        f"environment = os.environ | {{{orphans.STARTER!r}: str(os.getpid())}}\n"
        f"command = [sys.executable, '-c', {helper + '; time.sleep(60)'!r}]\n"
        "print(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL).pid)"
    )
    done = subprocess.run(
        [sys.executable, "-c", starter], capture_output=True, text=True, check=True
    )
    until = time.monotonic() + 10

    while not orphans.is_gone(done.stdout.strip()):
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.slow
def test_a_rank_that_waits_leaves_its_core_to_the_next(tmp_path: Path) -> None:
    """Rank 0 waits for what rank 1 writes; one runs at once, in a process like any other."""
    script = tmp_path / "waits.py"
    script.write_text(f"""
import multiprocessing, os, pathlib, sys, time
folder = pathlib.Path(os.environ[{messages.FOLDER!r}])
if os.environ["RANK"] == "1":
    (folder / "1-0.1").touch()
else:
    (folder / "0.waits").write_text("1-0.1")
    while not (folder / "1-0.1").exists():
        time.sleep(0.05)
print(multiprocessing.parent_process(), multiprocessing.current_process().name)
print(os.environ[{messages.BESIDE!r}], os.getpid(), os.getppid(), sys.stdin.read())
""")
    run = ["run", "--nproc-per-node", "2", "--rank"]

    ended = list(outcomes([0, 1], lambda rank, _: [*run, str(rank), str(script)], 1))

    assert [each.info.exit_code for each in ended] == [0, 0]
    pattern = r"None MainProcess\n0,1 (\d+) (\d+) \n"
    (first, parent), (second, other) = (re.findall(pattern, each.stdout)[0] for each in ended)
    assert first != second
    assert parent == other != str(os.getpid())


def test_only_a_process_that_has_ended_is_gone() -> None:
    assert not orphans.is_gone(str(os.getpid()))
    assert not orphans.is_gone("None")
    assert not orphans.is_gone("")
    assert not orphans.is_gone(None)
    assert orphans.is_gone("4194304")  # one more than the greatest that Linux has, proc(5)
