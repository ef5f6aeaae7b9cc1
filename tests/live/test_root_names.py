"""Models whose modules have the same names are told apart by the variables that hold them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Outcome

MODEL = "nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256)).cuda()"

GAN = f"""
import torch, torch.nn as nn

def main():
    netG, netD = {MODEL}, {MODEL}
    of_g = torch.optim.SGD(netG.parameters(), lr=0.1)
    of_d = torch.optim.SGD(netD.parameters(), lr=0.1)
    for _ in range(2):
        made = netG(torch.randn(8, 256, device="cuda"))
        netD(made.detach()).sum().backward()
        of_d.step(); of_d.zero_grad()
        netD(made).sum().backward()
        of_g.step(); of_g.zero_grad()

main()
"""

DISTILLED = f"""
import torch, torch.nn as nn
from torch.optim.swa_utils import AveragedModel

class Trainer:
    def __init__(self):
        self.student, self.teachers = {MODEL}, [{MODEL}, {MODEL}]
        self.teachers[0].requires_grad_(False)
        self.average = AveragedModel(self.student)
        self.optimizer = torch.optim.SGD(self.student.parameters(), lr=0.1)

    def fit(self):
        for _ in range(2):
            x = torch.randn(8, 256, device="cuda")
            made = self.student(x)
            with torch.no_grad():
                wanted = sum(teacher(x) for teacher in self.teachers)
            (made - wanted).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.average.update_parameters(self.student)

Trainer().fit()
"""

ONE = f"""
import torch, torch.nn as nn
model = {MODEL}
average = torch.optim.swa_utils.AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.randn(8, 256, device="cuda")).sum().backward()
    optimizer.step(); optimizer.zero_grad()
    average.update_parameters(model)
"""

COMPILED = f"""
import torch, torch.nn as nn
model = {MODEL}
optimizer = torch.optim.AdamW(model.parameters())

@torch.compile
def step(x):
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

for _ in range(2):
    step(torch.randn(8, 256, device="cuda"))
"""

WRAPPED = """
class Wrapped(nn.Module):  # as _FabricModule, lightning/fabric/wrappers.py
    def __init__(self, model):
        super().__init__()
        self._forward_module = model

    def forward(self, x):
        return self._forward_module(x)
"""
POSITIONS = f"""
import torch, torch.nn as nn
{WRAPPED}
class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.ones(512, 256, device="cuda")  # no buffer

    def forward(self, x):
        return x + self.table[:8]

layers = nn.Sequential(Positions(), nn.Linear(256, 256).cuda())
model = Wrapped(layers)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    model(torch.randn(8, 256, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def reported(run_graphmem: Callable[..., Outcome], tmp_path: Path) -> Callable[[str], Any]:
    def report(script: str) -> Any:
        (tmp_path / "train.py").write_text(script)
        output = str(tmp_path / "report.json")
        outcome = run_graphmem(
            "run", "--gpu", "t4", "--format", "json", "-o", output, str(tmp_path / "train.py")
        )
        assert outcome.exit_code == 0, outcome.stderr
        return json.loads(Path(output).read_text())

    return report


def _parameters(report: Any) -> set[str]:
    """The names of those alive at the peak; what else keeps one follows a semicolon."""
    reasons = (each["reason"].partition(";")[0] for each in report["at_peak"]["holders"])
    prefix = "the parameter "
    return {each.removeprefix(prefix) for each in reasons if each.startswith(prefix)}


def _of(*models: str) -> set[str]:
    return {f"{model}{i}.{name}" for model in models for i in (0, 1) for name in ("weight", "bias")}


@pytest.mark.parametrize(("wrapper", "part"), [("Wrapped", ""), ("nn.DataParallel", "module.")])
def test_models_that_are_wrapped(wrapper: str, part: str, reported: Callable[[str], Any]) -> None:
    """The optimizers' parameters are those of the models within the wrappers."""
    wrapped = GAN.replace(f"{MODEL}, {MODEL}", f"{wrapper}({MODEL}), {wrapper}({MODEL})")
    report = reported(wrapped.replace("\ndef main", f"{WRAPPED}\ndef main", 1))

    assert _parameters(report) == _of(f"netG.{part}", f"netD.{part}")


def test_what_a_module_in_a_wrapper_keeps(reported: Callable[[str], Any]) -> None:
    reasons = [each["reason"] for each in reported(POSITIONS)["at_peak"]["holders"]]

    assert any("held by the variable 0.table" in each for each in reasons)


def test_two_trained_models(reported: Callable[[str], Any]) -> None:
    report = reported(GAN)
    assert _parameters(report) == _of("netG.", "netD.")
    assert report["model"]["parameters"] == 4 * (256 * 256 + 256)


def test_two_compiled_models(reported: Callable[[str], Any]) -> None:
    pytest.importorskip("triton")
    compiled = GAN.replace(
        "    for _", "    netG, netD = torch.compile(netG), torch.compile(netD)\n    for _"
    )
    assert _parameters(reported(compiled)) == _of("netG.", "netD.")


def test_models_that_are_not_trained(reported: Callable[[str], Any]) -> None:
    """The student was called first, and its average never."""
    report = reported(DISTILLED)
    assert _of("", "teachers[0].", "teachers[1].") <= _parameters(report)


def test_a_copy_that_is_not_called(reported: Callable[[str], Any]) -> None:
    assert _of("") <= _parameters(reported(ONE))


def test_a_model_that_only_compiled_code_runs(reported: Callable[[str], Any]) -> None:
    pytest.importorskip("triton")
    report = reported(COMPILED)
    assert _parameters(report) == _of("")
    modules = {holder["module"] for holder in report["at_peak"]["holders"]}
    assert modules <= {"", "0", "1", None}
