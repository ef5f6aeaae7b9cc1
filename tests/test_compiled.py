"""`torch.compile` in what is analysed: it runs eagerly, and the report says so."""

from __future__ import annotations

from pathlib import Path

import pytest

import graphmem

MODEL = """
import torch

{decorated}
def act(x):
    return torch.sin(x) * x

class Net(torch.nn.Linear):
    def forward(self, x):
        return act(super().forward(x)).sum()

def build():
    model = Net(8, 8)
    {compiled}
    return model, torch.randn(4, 8)
"""


@pytest.mark.parametrize(
    ("decorated", "compiled"),
    [("@torch.compile", ""), ("", "model.compile()"), ("", "model = torch.compile(model)")],
)
def test_what_is_compiled_is_as_large_as_what_is_not(
    decorated: str, compiled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plain.py").write_text(MODEL.format(decorated="", compiled=""))
    Path("model.py").write_text(MODEL.format(decorated=decorated, compiled=compiled))
    eager = graphmem.analyze("plain.py", steps=1)
    report = graphmem.analyze("model.py", steps=1)
    assert report.peak == eager.peak
    (assumed,) = [each for each in report.assumptions if each.what == "torch.compile"]
    assert assumed.source is not None
    assert "model.py" in assumed.source
