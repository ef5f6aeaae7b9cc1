"""Messages between ranks: who is waited for, and when waiting is over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

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
    monkeypatch.setattr(messages, "_PATIENCE", 5.0)
    return Messages()


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

    assert time.monotonic() - begun < messages._PATIENCE / 2


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


def test_only_a_process_that_has_ended_is_gone() -> None:
    assert not orphans.is_gone(str(os.getpid()))
    assert not orphans.is_gone("None")
    assert not orphans.is_gone("")
    assert not orphans.is_gone(None)
    assert orphans.is_gone("4194304")  # one more than the greatest that Linux has, proc(5)
