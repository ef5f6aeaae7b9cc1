"""What a rank has received from another says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome

NBYTES = 64 * 256 * 4
SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
pair = dist.new_group([1, 3])
torch.cuda.set_device(dist.get_rank())
received = torch.empty(64, 256, device="cuda")
{receive}
received.sum()
"""
WAYS = {
    "alone": "dist.recv(received, group=pair, group_src=1)",
    "in a batch": "dist.batch_isend_irecv([dist.P2POp(dist.irecv, received, 3)])[0].wait()",
}


@pytest.mark.parametrize("receive", WAYS.values(), ids=WAYS)
def test_a_received_tensor_names_the_rank_that_sent_it(
    run_graphmem: Callable[..., Outcome], tmp_path: Path, receive: str
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(receive=receive))
    output = tmp_path / "report.json"
    options = ("--gpu", "t4", "--nproc-per-node", "4", "--rank", "1", "--format", "json")
    run_graphmem("run", *options, "-o", str(output), str(tmp_path / "train.py"))

    at_peak = json.loads(output.read_text())["at_peak"]
    assert at_peak["by_category"]["communication"] == NBYTES
    assert "received from rank 3" in {holder["reason"] for holder in at_peak["holders"]}
