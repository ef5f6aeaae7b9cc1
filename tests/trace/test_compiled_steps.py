"""Optimizers whose steps are compiled."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


WHOLE = """
import torch

net = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

@torch.compile
def train(x):
    optimizer.zero_grad()
    net(x).mean().backward()
    optimizer.step()

for _ in range(3):
    train(torch.randn(8, 64, device="cuda"))
"""


VALIDATED = """
import torch

net = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

@torch.compile
def loss_of(x):
    return net(x).mean()

with torch.no_grad():
    loss_of(torch.randn(8, 64, device="cuda"))
big = torch.zeros(1 << 18, device="cuda")
for _ in range(2):
    loss_of(torch.randn(8, 64, device="cuda")).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


NUMBERS_OF_THE_HOST = """
import torch

parameter = torch.zeros(64, device="cuda")
rate = torch.tensor(0.0)
compiled = 0

def count(graph, inputs):
    global compiled
    compiled += 1
    return graph.forward

@torch.compile(backend=count, dynamic=False)
def step(parameter, rate):
    parameter.sub_(rate)

for number in range(4):
    step(parameter, rate.fill_(number))
print("compiled", compiled, "times")
"""


def test_a_step_of_one_graph_is_an_optimizer_phase_with_named_state(
    tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    """On a card nothing breaks that graph, so graphmem's hooks must not either."""
    report = _report_of(SCRIPT, tmp_path, run_graphmem)

    phases = [phase["name"] for step in report["steps"] for phase in step["phases"]]
    assert phases == ["forward", "backward", "optimizer"] * 3
    assert report["at_peak"]["by_category"]["optimizer_state"] == 1024 * 1024 * 4


def test_a_step_that_runs_kernels_alone_is_an_optimizer_phase(
    tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    """No module is called: the first forward pass begins when its graph is compiled."""
    report = _report_of(WHOLE, tmp_path, run_graphmem)

    phases = {step["step"]: [each["name"] for each in step["phases"]] for step in report["steps"]}
    assert phases == {step: ["forward", "backward", "optimizer"] for step in range(3)}


def test_compiled_code_that_is_not_differentiated_begins_no_step(
    tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    """A validation before the first step is set-up, and the batch after it as well."""
    report = _report_of(VALIDATED, tmp_path, run_graphmem)

    phases = [[each["name"] for each in step["phases"]] for step in report["steps"]]
    assert phases == [["forward", "backward", "optimizer"]] * 2
    assert report["steps"][0]["phases"][0]["start"] >= 64 * 64 * 4 + (1 << 20)


def test_a_rate_on_the_host_does_not_compile_each_step_again(
    tmp_path: Path, run_graphmem: Callable[..., Outcome]
) -> None:
    """Without graphmem it is compiled once; on torch 2.9 guards of the host's tensors failed."""
    script = tmp_path / "train.py"
    script.write_text(NUMBERS_OF_THE_HOST)

    outcome = run_graphmem("run", "--gpu", "h100", str(script))

    assert "compiled 1 times" in outcome.stdout


def _report_of(script: str, folder: Path, run_graphmem: Callable[..., Outcome]) -> Any:
    (folder / "train.py").write_text(script)
    found = folder / "report.json"
    options = ("--gpu", "h100", "--format", "json", "--output", str(found))
    outcome = run_graphmem("run", *options, str(folder / "train.py"))
    assert outcome.exit_code == 0, outcome.stderr
    return json.loads(found.read_text())
