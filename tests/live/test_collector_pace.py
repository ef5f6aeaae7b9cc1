"""Python's cycle collector runs on the virtual card as often as in a real process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.conftest import Outcome

# Prints how often the collector looked at young objects, in steps that leave `cycles` lists each.
SCRIPT = """
import gc, json, sys
import torch

device, cycles = sys.argv[1], int(sys.argv[2])
found = []
gc.set_threshold(700)  # 2,000 from Python 3.13 on
model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(6)]).to(device)
optimizer = torch.optim.SGD(model.parameters(), foreach=False)
gc.collect()
gc.callbacks.append(lambda phase, info: phase == "stop" and found.append(info["generation"]))
for _ in range(20):
    for _ in range(cycles):
        cycle = []
        cycle.append(cycle)
    model(torch.ones(4, 8, device=device)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print(json.dumps({"collections": len(found), "threshold": gc.get_threshold()[0]}))
"""


def collections(printed: str) -> int:
    lines = [line for line in printed.splitlines() if line.startswith('{"collections"')]
    found = json.loads(lines[0])
    assert found["threshold"] == 700
    return int(found["collections"])


def test_it_runs_as_often_as_the_programs_own_objects_ask_for(
    run_graphmem: Callable[..., Outcome], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    command = [sys.executable, str(script), "cpu", "350"]
    real = subprocess.run(command, check=True, capture_output=True, text=True)
    on_card = run_graphmem("run", "--gpu", "a100-80gb", str(script), "cuda", "350")

    assert collections(real.stdout) in range(9, 13)  # 20 steps x 350 lists, one in 700
    # Recording leaves 2,000 objects a step, for which the collector would come 57 times more.
    assert collections(on_card.stdout) in range(9, 31)
