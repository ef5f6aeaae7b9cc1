"""The predicted saving of checkpointing is that of a trace with checkpointing."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

import graphmem
from graphmem.analysis import Analysis, Request, run_analysis
from graphmem.changes import Changes
from graphmem.graph import PhaseName
from graphmem.layer_ranges import NoModuleError
from graphmem.passes.checkpointing import CheckpointedModule, Checkpointing
from graphmem.units import format_bytes
from tests.support.places import FIXTURES

SMALL_GPT2 = {"batch": "2"}


def analyzed(fixture: str, *checkpoint: str, **settings: str) -> Analysis:
    request = Request(steps=1, settings=settings, changes=Changes(checkpoint=checkpoint))
    return run_analysis(f"{FIXTURES / fixture}.py:build", request)


def alive_after_forward(analysis: Analysis) -> int:
    """Requested bytes when the last forward phase ends."""
    phases = [each for each in analysis.graph.phases if each.name is PhaseName.FORWARD]
    return analysis.timeline.at(phases[-1].end).requested


@pytest.mark.parametrize(
    ("fixture", "module", "settings"),
    [
        ("gpt2", "h.3", SMALL_GPT2),
        pytest.param("gpt2", "h.3.mlp", SMALL_GPT2, marks=pytest.mark.slow),
        pytest.param("gpt2", "h.3.attn", SMALL_GPT2, marks=pytest.mark.slow),
        ("transformer_block", "mlp", {}),
        ("transformer_block", "attention", {}),
        ("mlp", "activation", {"activation": "gelu"}),
    ],
)
def test_the_prediction_is_what_a_trace_with_checkpointing_shows(
    fixture: str, module: str, settings: dict[str, str]
) -> None:
    before = analyzed(fixture, **settings)
    predicted = {each.module: each for each in before.annotations["checkpointing"].modules}
    after = analyzed(fixture, module, **settings)

    saved = alive_after_forward(before) - alive_after_forward(after)
    assert (predicted[module].saves_bytes if module in predicted else 0) == saved


def operations(analysis: Analysis) -> Counter[str]:
    """How often each operation runs; unpacking a saved tensor detaches it."""
    targets = Counter(op.target for op in analysis.graph.ops)
    del targets["aten.detach.default"]
    return targets


def test_recomputed_operations_are_the_extra_ones_of_a_trace() -> None:
    """All operations but the last three: recomputation stops at the last tensor that is needed, and
    nothing saves the result of `mlp.c_proj` or of the addition after it."""
    before = analyzed("gpt2", **SMALL_GPT2)
    (predicted,) = (
        each for each in before.annotations["checkpointing"].modules if each.module == "h.3"
    )
    more = operations(analyzed("gpt2", "h.3", **SMALL_GPT2)) - operations(before)

    assert predicted.recomputed_operations == more.total() + len(("mm", "_unsafe_view", "add"))


def test_a_pattern_that_matches_no_module_is_an_error() -> None:
    with pytest.raises(NoModuleError):
        analyzed("mlp", "blocks")


def test_a_list_of_modules_is_not_advised_as_it_is_never_called() -> None:
    """GPT-2's blocks are the ModuleList `h`."""
    advised = {
        each.module for each in analyzed("gpt2", **SMALL_GPT2).annotations["checkpointing"].modules
    }
    assert "h.3" in advised
    assert "h" not in advised


class Wrapper(nn.Module):
    """Calls another module, as DistributedDataParallel does."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.module(x)
        return x


def test_the_model_within_a_wrapper_is_not_advised() -> None:
    blocks = (nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(2))
    model = Wrapper(Wrapper(nn.Sequential(*blocks)))
    report = graphmem.analyze(model, torch.randn(64, 8), gpu="h100")

    (finding,) = (each for each in report.findings if each.found_by == "checkpointing")
    dropped = format_bytes(64 * 8 * 4)  # the layer's result, which GELU saves
    (line,) = finding.lines
    assert line == (
        f"checkpointing module.module.[0-1] would save {dropped} each at the end of the forward "
        "pass and recompute 3 operations each"  # t, addmm and gelu
    )


def test_a_module_that_runs_all_of_another_one_is_advised_once() -> None:
    """Checkpointing a block or the network that is all of it is the same change."""
    blocks = (Wrapper(nn.Sequential(nn.Linear(8, 8), nn.GELU())) for _ in range(2))
    model = nn.Sequential(*blocks)
    found = run_analysis(lambda: (model, torch.randn(64, 8)), Request(steps=1))

    advised = [each.module for each in found.annotations["checkpointing"].modules]
    assert advised == ["0", "1"]  # and neither `0.module` nor `1.module`


def test_one_operation_is_not_several() -> None:
    found = Checkpointing((CheckpointedModule("wte", 131072, 1, 131072),))
    (line,) = found.report_lines()
    assert line.endswith("save 128.0 KiB at the end of the forward pass and recompute 1 operation")
