"""What a slower card keeps reserved: blocks that were freed while another stream used them.

Each iteration of the script frees 4 MiB that a side stream reads.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome

SCRIPT = """
import torch

side = torch.cuda.Stream()
for i in range(4):
    x = torch.empty(1 << 20, device="cuda")
    with torch.cuda.stream(side):
        x.record_stream(side)
        y = x.sum()
    {forget}
    {wait}
"""
RunIt = Callable[..., Outcome]


@pytest.mark.parametrize(
    ("wait", "told"),
    [
        ("pass", "16.0 MiB (16,777,216 bytes)"),
        ("torch.cuda.synchronize() if i == 1 else None", "8.0 MiB (8,388,608 bytes)"),
        ("side.synchronize() if i == 2 else None", "12.0 MiB (12,582,912 bytes)"),
        ("side.record_event().synchronize()", "4.0 MiB (4,194,304 bytes)"),
        ("torch.cuda.current_stream().synchronize()", "16.0 MiB (16,777,216 bytes)"),
        (
            "torch.cuda.current_stream().wait_stream(side); torch.zeros(1, device='cuda').item()",
            "4.0 MiB (4,194,304 bytes)",
        ),
    ],
)
def test_the_verdict_has_what_may_be_late(
    run_graphmem: RunIt, tmp_path: Path, wait: str, told: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(wait=wait, forget="del x, y"))

    done = run_graphmem("run", str(script))

    assert done.exit_code == 0, done.stderr
    verdict = " ".join(done.stderr.partition("\npeak ")[0].split())
    assert f"may reserve up to {told} more: freed while another stream used it" in verdict


def test_nothing_is_late_that_its_own_stream_used(run_graphmem: RunIt, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        SCRIPT.format(wait="pass", forget="del x, y").replace("x.record_stream", "id")
    )

    assert "may reserve" not in run_graphmem("run", str(script)).stderr


MESSAGES = """
import torch, torch.distributed as dist

dist.init_process_group("nccl")
for i in range(4):
    x = torch.empty(1 << 20, device="cuda")
    message = {message}
    {wait}
    del x, message
    torch.zeros(1, device="cuda").item() if {seen} else None
"""


@pytest.mark.parametrize(
    ("message", "wait", "seen", "told"),
    [
        ("dist.isend(x, 1)", "message.wait()", "False", "16.0 MiB (16,777,216 bytes)"),
        ("dist.isend(x, 1)", "message.wait()", "True", "4.0 MiB (4,194,304 bytes)"),
        ("dist.irecv(x, 1)", "pass", "True", "16.0 MiB (16,777,216 bytes)"),
        (
            "dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, 1)])",
            "message[0].wait()",
            "i == 2",
            "12.0 MiB (12,582,912 bytes)",
        ),
    ],
)
def test_a_message_is_late_until_the_host_waits_for_what_waited_for_it(
    run_graphmem: RunIt, tmp_path: Path, message: str, wait: str, seen: str, told: str
) -> None:
    """The stream that waits for a message keeps the host waiting, if a number is read off it."""
    script = tmp_path / "train.py"
    script.write_text(MESSAGES.format(message=message, wait=wait, seen=seen))

    done = run_graphmem("run", "--nproc-per-node", "2", str(script))

    assert done.exit_code == 0, done.stderr
    verdict = " ".join(done.stderr.partition("\npeak ")[0].split())
    assert f"may reserve up to {told} more: freed while another stream used it" in verdict
