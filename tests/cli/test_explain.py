"""`graphmem explain`: what a name means, who owns it, and what would lower the peak."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphmem.advice.candidates import advise, candidates
from graphmem.advice.subjects import Explained, UnknownSubjectError, explain_subject
from graphmem.analysis import Analysis, Request, run_analysis
from tests.support.places import FIXTURES

MLP = f"{FIXTURES / 'mlp'}.py:build"
REQUEST = Request(steps=1, settings={"activation": "gelu"})
REQUEST_OF_A_MODEL = Request(steps=1)
WIDE = 2 * 4096 * 4096 * 2


@cache
def mlp() -> Analysis:
    return run_analysis(MLP, REQUEST)


def explained(name: str) -> list[Explained]:
    return explain_subject(mlp(), name)


@pytest.mark.parametrize("name", ["gelu", "aten.gelu", "aten.gelu.default"])
def test_an_operator_allocates_its_result(name: str) -> None:
    assert [each.storage.nbytes for each in explained(name)] == [WIDE]


def test_a_module_has_its_parameters_and_what_it_allocates() -> None:
    kinds = {holding.kind for each in explained("up") for holding in each.holdings}

    assert {"parameter", "saved_tensor", "variable"} <= kinds


def test_a_line_is_found_by_the_end_of_its_path() -> None:
    (gelu,) = explained("gelu")
    assert gelu.op is not None
    line = str(gelu.op.source).rpartition("/")[2]

    assert gelu.storage in [each.storage for each in explained(line)]


def test_a_saved_tensor_names_its_formula_interval_and_release() -> None:
    (gelu,) = explained("gelu")
    (saved,) = (each for each in gelu.holdings if each.kind == "saved_tensor")

    assert saved.rule.startswith("AddmmBackward0.mat1 for the gradient of down.weight (mat2: ")
    assert saved.first_op is not None
    assert saved.last_op is not None
    assert saved.first_op < saved.last_op
    assert saved.lets_go.startswith("AddmmBackward0 runs; it would not be saved if nothing needed")


class Attention(torch.nn.Linear):
    """Queries, keys and values are views of one storage."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = super().forward(x).view(3, 2, 4, 128, 64)
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)


def test_fields_that_a_node_saves_for_the_same_gradients_are_named_together() -> None:
    model, inputs = Attention(64, 64), torch.randn(3 * 2 * 4 * 128, 64)
    request = Request(steps=1, gpu="h100")
    analysis = run_analysis(lambda: (model, inputs, torch.Tensor.sum), request)
    named = explain_subject(analysis, "addmm")[0].holdings

    (saved,) = (each for each in named if "Attention" in each.name)
    node = saved.name.partition(".")[0]
    assert saved.rule.startswith(
        f"{node}.key, .query and .value for the gradients of query, key and value ("
    )


def test_the_nearest_name_is_suggested() -> None:
    with pytest.raises(UnknownSubjectError) as caught:
        explained("uup")

    assert caught.value.hint == "did you mean up?"


def test_a_storage_is_found_by_its_number() -> None:
    (gelu,) = explained("gelu")

    assert [each.storage for each in explained(f"s{gelu.storage.id}")] == [gelu.storage]


def test_what_the_peak_has_comes_first() -> None:
    """Of each of the line's results, largest first within both."""
    found = explained("aten.mm")
    order = [(not each.at_peak, -each.storage.nbytes) for each in found]

    assert order == sorted(order)
    assert len({is_gone for is_gone, _ in order}) == 2


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(UnknownSubjectError):
        explained("nonsense")


def test_advice_is_measured_and_the_largest_saving_comes_first() -> None:
    found = advise(MLP, REQUEST, mlp())
    before = mlp().report.peak.allocated

    savings = [each.saves_bytes for each in found]
    assert savings == sorted(savings, reverse=True)
    for each in found:
        after = run_analysis(MLP, each.candidate.request).report.peak.allocated
        assert each.saves_bytes == before - after > 0
        assert each.candidate.price
        assert each.candidate.line


@pytest.mark.parametrize(
    ("gpu", "dtype", "options"),
    [
        ("a100", torch.float32, ["--autocast bf16"]),
        ("t4", torch.float32, ["--autocast fp16"]),  # which only emulates bfloat16
        ("a100", torch.bfloat16, []),
    ],
)
def test_autocast_is_advised_in_what_the_card_computes_with(
    gpu: str, dtype: torch.dtype, options: list[str]
) -> None:
    request = Request(steps=1, gpu=gpu)
    made = run_analysis(
        lambda: (nn.Linear(8, 8, dtype=dtype), torch.ones(8, 8, dtype=dtype)), request
    )

    found = [each.option for each in candidates(request, made) if "autocast" in each.option]
    assert found == options


def test_an_activation_is_exchanged_in_all_its_calls() -> None:
    """`--activation` exchanges the calls that save nothing as well, as the finding counts them."""
    layers = [nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.GELU()]  # no layer saves the last
    model = nn.Sequential(*layers)
    made = run_analysis(lambda: (model, torch.ones(8, 8)), REQUEST_OF_A_MODEL)

    (advice,) = (each for each in candidates(REQUEST_OF_A_MODEL, made) if "gelu" in each.what)
    assert advice.what == "relu in place of gelu (2 calls)"
    assert advice.frees_bytes == 8 * 8 * 4


def test_layers_that_are_frozen_are_not_advised_to_be_frozen() -> None:
    """Of a frozen list of four and one of two that trains, the latter's first half."""
    model = nn.Sequential()
    for name, count in (("encoder", 4), ("decoder", 2)):
        model.add_module(name, nn.Sequential(*(nn.Linear(8, 8) for _ in range(count))))
    model.encoder.requires_grad_(False)
    made = run_analysis(lambda: (model, torch.randn(4, 8)), REQUEST_OF_A_MODEL)
    found = [each.option for each in candidates(REQUEST_OF_A_MODEL, made) if "freeze" in each.what]

    assert found == ["--freeze decoder.0"]


def test_a_model_that_is_never_called_is_held_as_long_as_it_lives(
    run_graphmem: Callable[..., Any], tmp_path: Path
) -> None:
    """Its parameters are found at the end, and have been that all the time."""
    (tmp_path / "built.py").write_text(
        "import torch\n"
        "def main():\n"
        "    model = torch.nn.Linear(256, 512).cuda()\n"
        "    torch.zeros(8, device='cuda')\n"
        "main()\n"
    )
    saved = str(tmp_path / "step.graphmem")
    run_graphmem("run", "--save", saved, str(tmp_path / "built.py"))

    told = run_graphmem("explain", saved, "weight").stdout
    (interval,) = re.findall("from operation (.*): parameter weight", told)
    first, last = map(int, interval.split(" to operation "))
    assert last > first


def test_the_command_prints_what_to_try(run_graphmem: Callable[..., Any]) -> None:
    outcome = run_graphmem("explain", MLP, "--set", "activation=gelu", "--steps", "1")

    assert outcome.exit_code == 0
    assert re.search(r"^ 1\. .*: saves .* bytes, ", outcome.stdout, re.MULTILINE)
    assert "--activation gelu=relu" in outcome.stdout


def test_the_command_explains_a_name(run_graphmem: Callable[..., Any]) -> None:
    outcome = run_graphmem("explain", MLP, "gelu", "--set", "activation=gelu", "--steps", "1")

    assert outcome.exit_code == 0
    assert outcome.stdout.startswith(f"gelu: 1 storage, 64.0 MiB ({WIDE:,} bytes)")


def test_what_an_operator_makes_is_that_of_the_peaks_iteration() -> None:
    """Of five equal iterations the first with the optimizer's state is that of the peak."""
    analysis = run_analysis(MLP, Request(steps=5))
    peak = analysis.report.peak
    assert peak.step == 1
    assert peak.op is not None

    assert any(each.at_peak for each in explain_subject(analysis, peak.op))


def test_a_module_has_its_optimizers_states() -> None:
    """The report counts them to the module as well."""
    model = nn.Sequential(nn.Linear(256, 512, bias=False), nn.ReLU(), nn.Linear(512, 8))
    made = run_analysis(lambda: (model, torch.ones(4, 256)), Request(steps=2, optimizer="adam"))

    states = [
        (each.storage.nbytes, each.at_peak, holding.name)
        for each in explain_subject(made, "0")
        for holding in each.holdings
        if holding.kind == "optimizer_state"
    ]
    weight = 256 * 512 * 4
    assert states == [(weight, True, "0.weight.exp_avg"), (weight, True, "0.weight.exp_avg_sq")]


def test_a_parameter_has_its_gradient_and_states(run_graphmem: Callable[..., Any]) -> None:
    """Tied weights have several names."""
    target = ("fixtures/gpt2.py:build", "--set", "layers=2", "--set", "batch=1")
    first, second = (
        run_graphmem("explain", *target, name).stdout.partition("\n")
        for name in ("lm_head.weight", "wte.weight")
    )

    assert (first[0], first[2]) == (second[0].replace("wte", "lm_head"), second[2])
    for kept in ("parameter wte.weight", "gradient wte.weight.grad", "state wte.weight.exp_avg"):
        assert f" {kept}\n" in first[2]


MOVED = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False))
optimizer = torch.optim.SGD(model.parameters())
for step in range(3):
    model.cuda()
    model(torch.ones(4, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 1:
        torch.empty(2**20, device="cuda")  # the peak
    model.cpu()
"""


def test_a_module_has_the_parameters_of_one_iteration(
    run_graphmem: Callable[..., Any], tmp_path: Path
) -> None:
    """A model that goes to the host and back has new ones on the card in each iteration.

    The second one comes back before the second forward pass begins, so within the first iteration,
    and the third one within the second.
    """
    script, saved = tmp_path / "moved.py", tmp_path / "moved.graphmem"
    script.write_text(MOVED)
    assert run_graphmem("run", "--save", str(saved), str(script)).exit_code == 0

    outcome = run_graphmem("explain", str(saved), "0")
    assert outcome.stdout.count(": parameter 0.weight") == 2, outcome.stdout
