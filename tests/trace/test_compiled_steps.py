"""Steps of a program's own optimizers that are compiled as one graph."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome

pytest.importorskip("triton")

SCRIPT = """
import torch

class Momentum(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state["momentum"] = torch.zeros_like(parameter)
            state["momentum"].lerp_(parameter.grad, 0.1)
            parameter.sub_(state["momentum"], alpha=0.1)

net = torch.nn.Linear(1024, 1024, bias=False).cuda()
optimizer = Momentum(net.parameters())
step = torch.compile(optimizer.step, fullgraph=True)
for _ in range(3):
    net(torch.randn(8, 1024, device="cuda")).mean().backward()
    step()
    optimizer.zero_grad()
"""


def test_a_step_of_one_graph_is_an_optimizer_phase_with_named_state(
    tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    """On a card nothing breaks that graph, so graphmem's hooks must not either."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    found = tmp_path / "report.json"

    options = ("--gpu", "h100", "--format", "json", "--output", str(found))
    outcome = run_graphmem("run", *options, str(script))

    assert outcome.exit_code == 0, outcome.stderr
    report = json.loads(found.read_text())
    phases = [phase["name"] for step in report["steps"] for phase in step["phases"]]
    assert phases == ["forward", "backward", "optimizer"] * 3
    assert report["at_peak"]["by_category"]["optimizer_state"] == 1024 * 1024 * 4
