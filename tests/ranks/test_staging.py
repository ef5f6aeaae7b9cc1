"""Checkpoints that are written while training goes on: `async_save` and what it stages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome

SAVE = """
import sys
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import BlockingAsyncStager, DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.fsdp import fully_shard
dist.init_process_group("cpu:gloo,cuda:nccl")
layer = fully_shard(torch.nn.Linear(1024, 1024, bias=False).cuda())
layer(torch.ones(1, 1024, device="cuda")).sum().backward()
numbers = torch.arange(6.0, device="cuda")
state = {"layer": layer.state_dict(), "some": numbers[2:4], "others": numbers[1:5:2]}
"""
STAGED = {
    "default": "saved = dcp.async_save(state, checkpoint_id='saved')",
    "cached": "saved = dcp.async_save(state, checkpoint_id='saved', "
    "async_stager=BlockingAsyncStager(cache_staged_state_dict=True))",
    "process": "begun = dcp.async_save(state, checkpoint_id='saved', "
    "async_checkpointer_type=AsyncCheckpointerType.PROCESS, "
    "async_stager=DefaultStager(StagingOptions(True, True, True, True)))\n"
    "begun.staging_completion.result()\nsaved = begun.upload_completion",
}
LOAD = """
numbers.zero_()
saved.result()
read = {"some": torch.zeros(2), "others": torch.zeros(2)}
dcp.load(read, checkpoint_id="saved")
print(read["some"].tolist(), read["others"].tolist(), file=sys.stderr)
"""


@pytest.mark.parametrize("how", ["default", "cached", "process"])
def test_a_checkpoint_is_staged_and_then_written(
    run_graphmem: Callable[..., Outcome],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    how: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.py").write_text(SAVE + STAGED[how] + LOAD)

    report = "--format", "json", "--output", "r.json"
    done = run_graphmem("run", "--nproc-per-node", "1", *report, "s.py")

    assert done.exit_code == 0, done.stderr
    assert "[2.0, 3.0] [1.0, 3.0]" in done.stderr
    host = json.loads(Path("r.json").read_text())["host"]
    weight, shown, whole = 1024 * 1024 * 4, 2 * 2 * 4, 6 * 4
    pinned = {"default": 0, "cached": weight + shown, "process": weight + whole}
    assert host["pinned_requested"] == pinned[how]
