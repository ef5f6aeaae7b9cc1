"""A script that builds a model and never calls it: the model's memory has names."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
import torch

import graphmem
from tests.conftest import Outcome

BUILT = "torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.BatchNorm1d(512)).cuda()"
SCRIPTS = {
    "ends": f"model = {BUILT}",
    "dies": f"def main():\n    model = {BUILT}\n    raise SystemExit('no data')\nmain()",
    "leaves": f"def main():\n    model = {BUILT}\nmain()",
}
PARAMETERS = 256 * 512 + 512 + 2 * 512
BUFFERS = 2 * 512 * 4 + 8
"""Mean and variance, and a counter of 8 bytes."""


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_parameters_of_a_model_that_was_never_called_have_names(
    run_graphmem: Callable[..., Outcome], tmp_path: Path, script: str
) -> None:
    (tmp_path / "train.py").write_text(f"import torch\n{script}\n")
    output = tmp_path / "report.json"
    run_graphmem(
        "run", "--gpu", "t4", "--format", "json", "-o", str(output), str(tmp_path / "train.py")
    )

    report = json.loads(output.read_text())
    held = {name: nbytes for name, nbytes in report["at_peak"]["by_category"].items() if nbytes}
    held.pop("rounding")
    assert held == {"parameter": 4 * PARAMETERS, "buffer": BUFFERS}
    assert report["model"]["parameters"] == PARAMETERS
    reasons = {holder["reason"] for holder in report["at_peak"]["holders"]}
    assert {"the parameter 0.weight", "the buffer 1.running_mean"} <= reasons


@pytest.mark.parametrize("kept", ["", "kept.append(model[1])"], ids=["gone", "partly there"])
def test_parameters_of_a_model_that_is_only_evaluated_have_names(
    run_graphmem: Callable[..., Outcome], tmp_path: Path, kept: str
) -> None:
    """As in gpt-fast's `generate.py`: at the program's end the function's model is gone."""
    (tmp_path / "generate.py").write_text(
        "import torch\n"
        "kept = []\n"
        "def main():\n"
        f"    model = {BUILT}.eval()\n"
        "    with torch.no_grad():\n"
        "        print(model(torch.zeros(8, 256, device='cuda')).shape)\n"
        f"    {kept}\n"
        "main()\n"
    )
    output = tmp_path / "report.json"
    run_graphmem(
        "run", "--gpu", "t4", "--format", "json", "-o", str(output), str(tmp_path / "generate.py")
    )

    report = json.loads(output.read_text())
    assert report["model"]["parameters"] == PARAMETERS
    assert report["at_peak"]["by_category"]["parameter"] == 4 * PARAMETERS
    assert report["at_peak"]["by_category"]["buffer"] == BUFFERS
    reasons = {holder["reason"] for holder in report["at_peak"]["holders"]}
    assert {"the parameter 0.weight", "the buffer 1.running_mean"} <= reasons


def test_parts_that_are_gone_before_they_were_called_have_names(
    run_graphmem: Callable[..., Outcome], tmp_path: Path
) -> None:
    """As speechbrain's `Brain.modules`, one of which computes features before the first step."""
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "def main():\n"
        f"    parts = torch.nn.ModuleDict({{'features': torch.nn.ReLU(), 'net': {BUILT}}}).cuda()\n"
        "    parts['features'](torch.zeros(8, device='cuda'))\n"
        "main()\n"
    )
    output = tmp_path / "report.json"
    run_graphmem(
        "run", "--gpu", "t4", "--format", "json", "-o", str(output), str(tmp_path / "train.py")
    )

    report = json.loads(output.read_text())
    assert report["at_peak"]["by_category"]["parameter"] == 4 * PARAMETERS
    assert report["at_peak"]["by_category"]["buffer"] == BUFFERS


AVERAGED = """
class Average:
    def __init__(self, of):
        self.shadow = copy.deepcopy(of).requires_grad_(False)

model = torch.nn.Linear(256, 512).cuda()
average = Average(model)
optimizer = torch.optim.SGD(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.zeros(8, 256, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("is_in_function", [False, True])
def test_an_average_of_the_weights_has_the_name_of_its_variable(
    run_graphmem: Callable[..., Outcome], tmp_path: Path, *, is_in_function: bool
) -> None:
    """Also when the function that holds it has returned, as `main` at the program's end."""
    body = f"def main():\n{indent(AVERAGED, '    ')}\nmain()\n" if is_in_function else AVERAGED
    (tmp_path / "train.py").write_text(f"import copy, torch\n{body}")
    output = tmp_path / "report.json"
    run_graphmem("run", "--format", "json", "-o", str(output), str(tmp_path / "train.py"))

    report = json.loads(output.read_text())
    weights = 2 * (256 * 512 + 512)
    assert report["model"]["parameters"] == weights
    assert report["at_peak"]["by_category"]["parameter"] == 4 * weights
    reasons = {holder["reason"] for holder in report["at_peak"]["holders"]}
    assert {"the parameter weight", "the parameter average.shadow.weight"} <= reasons


@pytest.mark.parametrize("is_evaluated_first", [False, True])
def test_a_model_whose_parts_alone_are_called_is_named_as_a_whole(
    is_evaluated_first: bool,
) -> None:
    """As those of NeMo, whose `training_step` calls the encoder, then the decoder."""

    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = torch.nn.Sequential(torch.nn.Linear(256, 256))
            self.decoder = torch.nn.Sequential(torch.nn.Linear(256, 256))

        def loss(self, x: torch.Tensor) -> torch.Tensor:
            return self.decoder(self.encoder(x)).sum()

    with graphmem.virtual_gpu("t4") as gpu:
        model = Both().cuda()
        if is_evaluated_first:
            with torch.no_grad():
                model.loss(torch.ones(8, 256, device="cuda"))
        model.loss(torch.ones(8, 256, device="cuda")).backward()
        report = gpu.report()

    reasons = {holder.reason for holder in report.at_peak.holders}
    assert {f"the parameter {each}.0.weight" for each in ("encoder", "decoder")} <= reasons
    assert report.model.parameters == 2 * (256 * 256 + 256)


def test_a_module_may_list_its_parameters_in_its_own_way() -> None:
    """As TorchRL's `LossModule`, whose `named_parameters` takes fewer arguments than PyTorch's."""

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(8, 8)

        def named_parameters(self, prefix: str = "", recurse: bool = True) -> Any:  # type: ignore[override]
            return super().named_parameters(prefix, recurse)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x).sum()

    with graphmem.virtual_gpu("t4") as gpu:
        loss = Loss().cuda()
        loss(torch.ones(4, 8, device="cuda")).backward()
    assert gpu.report().peak.allocated


class Encoder(torch.nn.Module):
    """As TD7's, whose fixed copies only encode."""

    def __init__(self) -> None:
        super().__init__()
        self.of_state, self.of_action = torch.nn.Linear(64, 128), torch.nn.Linear(32, 256)

    def encode(self, state: torch.Tensor) -> torch.Tensor:
        encoded: torch.Tensor = self.of_state(state)
        return encoded


def test_a_copy_of_a_model_is_named_as_a_whole_by_the_method_that_runs() -> None:
    with graphmem.virtual_gpu("t4") as gpu:
        fixed = copy.deepcopy(Encoder().cuda())
        fixed.encode(torch.ones(8, 64, device="cuda"))
        report = gpu.report()

    assert report.model.parameters == 64 * 128 + 128 + 32 * 256 + 256
    held = {owner.name for each in report.at_peak.holders for owner in each.owners}
    assert {"of_state.weight", "of_action.weight"} <= held


def test_a_method_frees_its_variables_although_it_was_looked_at() -> None:
    grown = []

    class Deletes(Encoder):
        def encode(self, state: torch.Tensor) -> torch.Tensor:
            before = torch.cuda.memory_allocated()
            wide = torch.zeros(1 << 20, device=state.device)
            encoded: torch.Tensor = self.of_state(state)
            del wide
            grown.append(torch.cuda.memory_allocated() - before)
            return encoded

    with graphmem.virtual_gpu("t4"), torch.no_grad():
        model, states = Deletes().cuda(), torch.ones(8, 64, device="cuda")
        torch.mm(states, states.t())  # takes cuBLAS's workspace
        model.encode(states)

    assert grown == [8 * 128 * 4]
