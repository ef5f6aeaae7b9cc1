"""A program may give a parameter an attribute in whose place a tensor has a method.

GPT-NeoX's parallel layers set `weight.stride = stride` (megatron/mpu/layers.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conftest import Outcome

TRAINING = """import torch
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.LayerNorm(512)).cuda()
for each in model.parameters():
    each.STRIDE = each.SIZE = 1
with torch.no_grad():
    model[0].bias.zero_()
model.bfloat16()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(2):
    model(torch.zeros(8, 256, device="cuda", dtype=torch.bfloat16)).square().sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
assert {each.STRIDE for each in model.parameters()} == {1}
"""


def test_a_hidden_method_changes_nothing(
    run_graphmem: Callable[..., Outcome], tmp_path: Path
) -> None:
    def report_of(stride: str, size: str) -> Any:
        output = tmp_path / "report.json"
        script = tmp_path / "train.py"
        script.write_text(TRAINING.replace("STRIDE", stride).replace("SIZE", size))
        done = run_graphmem(
            "run", "--gpu", "t4", "--format", "json", "-o", str(output), str(script)
        )
        assert done.exit_code == 0
        return json.loads(output.read_text())

    hidden, plain = report_of("stride", "size"), report_of("stride_", "size_")

    assert hidden["peak"]["allocated"] == plain["peak"]["allocated"]
    assert hidden["at_peak"]["by_category"] == plain["at_peak"]["by_category"]
