"""`--lora`, `--quantise` and `--offload`: what PEFT, bitsandbytes and PyTorch make of a step."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import graphmem
from graphmem import TrainingStep
from graphmem.analysis import Request, run_analysis
from graphmem.changes import Changes
from graphmem.changes.lora import Lora
from graphmem.changes.messages import (
    AdaptedAlreadyError,
    NothingToQuantiseError,
    OptimizerNotRebuiltError,
    QuantiseFirstError,
)
from graphmem.changes.quantise import Quantisation
from graphmem.overrides import StepRunsItselfError
from tests.support.places import FIXTURES

MLP = f"{FIXTURES / 'mlp'}.py:build"
LORA = Lora(r=8, targets=("up",))

needs_peft = pytest.mark.skipif(find_spec("peft") is None, reason="peft is not installed")
needs_both = pytest.mark.skipif(
    find_spec("peft") is None or find_spec("bitsandbytes") is None,
    reason="peft or bitsandbytes is not installed",
)


class Block(nn.Module):
    """Two layers to adapt or quantise between an embedding and a head that is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 128)
        self.norm = nn.LayerNorm(128)
        self.up = nn.Linear(128, 512, bias=False)
        self.down = nn.Linear(512, 128)
        self.lm_head = nn.Linear(128, 100, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        output: torch.Tensor = self.lm_head(x + self.down(self.up(self.norm(x)).relu()))
        return output


def step_of(model: nn.Module, optimizer: Any = None) -> TrainingStep:
    tokens = torch.zeros(4, 64, dtype=torch.long)
    return TrainingStep(model, tokens, optimizer=optimizer, autocast="bf16")


def block(dtype: torch.dtype = torch.float32) -> TrainingStep:
    model = Block().to(dtype)
    return step_of(model, torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False))


def peak(build: Callable[[], TrainingStep], **changes: Any) -> Any:
    report = run_analysis(build, Request(steps=2, changes=Changes(**changes))).report
    return report.peak.allocated, report.at_peak.by_category


def changed_rows(outcome: Any) -> dict[str, tuple[int, int]]:
    assert outcome.exit_code == 0, outcome.stderr
    rows = json.loads(outcome.stdout)["rows"]
    return {row["name"]: (row["before"], row["after"]) for row in rows}


@needs_peft
def test_lora_adds_a_pair_of_32_bit_matrices_to_each_target(
    run_graphmem: Callable[..., Any],
) -> None:
    """AdamW keeps two moments of both, and a `step` each, of which blocks of the host hold none."""
    found = changed_rows(
        run_graphmem("whatif", MLP, "--lora", "r=16,targets=up+down", "--format", "json")
    )

    before = 2 * (2 * 1024 * 4096 + 4096 + 1024)
    adapters = 4 * 16 * (1024 + 4096) * 2
    assert found["parameter"] == (before, before + adapters)
    assert found["optimizer_state"] == (2 * before, 2 * adapters)


@needs_both
def test_4_bit_weights_are_half_a_byte_and_their_statistics(
    run_graphmem: Callable[..., Any],
) -> None:
    """Each 64 weights share a 32-bit maximum; each layer has the 16 values of its code."""
    found = changed_rows(
        run_graphmem("whatif", MLP, "--quantise", "nf4", "--steps", "1", "--format", "json")
    )

    weights, biases = 2 * 1024 * 4096, 4096 + 1024
    assert found["parameter"] == (2 * (weights + biases), weights // 2 + 2 * biases)
    assert found["buffer"] == (0, weights // 64 * 4 + 2 * 16 * 4)


@needs_both
@pytest.mark.parametrize("kind", ["nf4", "fp4", "nf4,double", "int8"])
def test_qlora_is_what_a_script_makes(kind: str) -> None:
    """The layers are made as in `fixtures/finetune/qlora_bnb.py`, adapted as PEFT documents."""
    lora = Lora(r=4, dropout=0.1, targets=("up", "down"))

    changed = peak(lambda: block(torch.bfloat16), quantise=Quantisation.parse(kind), lora=lora)

    assert changed == peak(lambda: qlora_by_hand(*kind.split(",")))


def qlora_by_hand(kind: str, *double: str) -> TrainingStep:
    import bitsandbytes as bnb
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

    model: Any = Block().to(torch.bfloat16)
    for name in ("up", "down"):
        old = getattr(model, name)
        sizes = (old.in_features, old.out_features, old.bias is not None)
        if kind == "int8":
            new = bnb.nn.Linear8bitLt(*sizes, has_fp16_weights=False, threshold=6.0)
            new.weight = bnb.nn.Int8Params(old.weight.data, False, has_fp16_weights=False)
        else:
            options = {"compress_statistics": bool(double), "quant_type": kind}
            new = bnb.nn.Linear4bit(*sizes, compute_dtype=torch.bfloat16, **options)
            new.weight = bnb.nn.Params4bit(old.weight.data, requires_grad=False, **options)
        new.bias = old.bias
        setattr(model, name, new.requires_grad_(False))
    model.is_loaded_in_8bit, model.is_loaded_in_4bit = kind == "int8", kind != "int8"
    model = prepare_model_for_kbit_training(model.to("cuda"), use_gradient_checkpointing=False)
    config = LoraConfig(r=4, lora_dropout=0.1, target_modules=["up", "down"])
    model = get_peft_model(model, config)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return step_of(model, torch.optim.AdamW(trained, lr=1e-4, foreach=False))


@needs_peft
def test_an_adapted_model_takes_names_of_the_model_as_built() -> None:
    """A frozen layer includes its adapter, and a checkpointed one multiplies by it again."""

    def by_hand() -> TrainingStep:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(Block(), LoraConfig(r=8, target_modules=["up", "down"]))
        model.get_submodule("base_model.model.down").requires_grad_(False)
        return step_of(model, lambda params: torch.optim.SGD(params, momentum=0.9))

    def built() -> TrainingStep:
        return step_of(Block(), lambda params: torch.optim.SGD(params, momentum=0.9))

    def products(**changes: Any) -> int:
        graph = run_analysis(built, Request(steps=1, changes=Changes(**changes))).graph
        return sum(op.target == "aten.mm.default" for op in graph.ops)

    lora = Lora(8, targets=("up", "down"))
    once = products(lora=lora)

    assert peak(built, lora=lora, freeze=("down",)) == peak(by_hand)
    # base_layer and lora_A; nothing needs what lora_B makes
    assert products(lora=lora, checkpoint=("up",)) == once + 2


@needs_peft
def test_the_models_owner_gets_it_back_as_it_was() -> None:
    model = Block()
    optimizer = torch.optim.AdamW(model.parameters())
    before = dict(model.named_modules())
    values = {name: each.clone() for name, each in model.state_dict().items()}
    attributes = set(vars(model))

    both = {"quantise": Quantisation("nf4")} if find_spec("bitsandbytes") is not None else {}
    changes = Changes(lora=LORA, freeze=("down",), **both)
    graphmem.analyze(step_of(model, optimizer), changes=changes, offload=True)

    assert dict(model.named_modules()) == before
    assert set(vars(model)) == attributes
    assert [*values] == [*model.state_dict()]
    assert all(each.equal(values[name]) for name, each in model.state_dict().items())
    assert all(each.requires_grad and type(each) is nn.Parameter for each in model.parameters())
    assert optimizer.param_groups[0]["params"] == [*model.parameters()]


def test_offloading_is_saving_on_the_host(run_graphmem: Callable[..., Any]) -> None:
    """Equal to a step that opens `save_on_cpu(pin_memory=True)` around its forward pass."""

    def built() -> TrainingStep:
        return step_of(Block())

    def by_hand() -> TrainingStep:
        step = built()
        assert step.model is not None
        forward = step.model.forward

        def offloaded(tokens: torch.Tensor) -> torch.Tensor:
            with torch.autograd.graph.save_on_cpu(pin_memory=True):
                output: torch.Tensor = forward(tokens)
            return output

        step.model.forward = offloaded
        return step

    changed = run_analysis(built, Request(steps=2, offload=True)).report
    rows = changed_rows(run_graphmem("whatif", MLP, "--offload", "--format", "json"))

    assert changed.peak.allocated == peak(by_hand)[0]
    assert rows["saved for backward"] == (83_886_080, 0)  # tests/cli/test_whatif.py derives it


@needs_both
def test_fit_finds_the_largest_batch_of_a_qlora_step(
    run_graphmem: Callable[..., Any], tmp_path: Path
) -> None:
    """Each value is traced in the same process, and yet is what a process of its own would say."""
    card = ("--gpu", "memory=1GiB,sm=75,multiprocessors=40", "--steps", "2", "--format", "json")
    qlora = ("--quantise", "nf4,double", "--lora", "r=16,targets=up+down", "--checkpoint", "up")

    (fit,) = json.loads(run_graphmem("fit", MLP, *card, *qlora).stdout)["cards"]
    at = ("--batch", str(fit["largest"]))
    found = changed_rows(run_graphmem("whatif", MLP, *card, *qlora, *at))

    (probe,) = (each for each in fit["probes"] if each["value"] == fit["largest"])
    assert fit["is_bounded"]
    assert probe["allocated"] == found["peak allocated"][1]


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("--lora", "alpha=16"), "--lora needs a rank", "--lora r=16,alpha=32"),
        (("--lora", "r=0"), "r must be a whole number above 0, not '0'", None),
        (("--lora", "r=8,alpha=much"), "alpha must be a number, at least 0, not 'much'", None),
        (("--lora", "r=8,dropout=1"), "dropout must be a number, from 0 to below 1", None),
        (("--lora", "r=8,target=up"), "has no option 'target'", "did you mean targets?"),
        (("--quantise", "nf5"), "cannot quantise to 'nf5'", "did you mean nf4?"),
        (("--quantise", "nf4,duble"), "cannot quantise to", "did you mean nf4,double?"),
        (("--quantise", "int8,double"), "int8 has no double quantisation", "use nf4,double"),
    ],
)
def test_options_out_of_range_are_one_line(
    run_graphmem: Callable[..., Any], arguments: tuple[str, ...], message: str, hint: str | None
) -> None:
    outcome = run_graphmem("whatif", MLP, *arguments)

    assert outcome.exit_code == 2
    error, *rest = outcome.stderr.splitlines()
    assert message in error
    assert (not rest) if hint is None else (hint in rest[0])


@needs_peft
@pytest.mark.parametrize(
    ("lora", "message", "hint"),
    [
        ("r=8,targets=upp", "no layer to adapt is called 'upp'", "did you mean up?"),
        ("r=8", "PEFT does not know which layers of Mlp to adapt", "targets=up+down"),
        ("r=8,targets=activation", "is not supported", "PEFT says so"),
    ],
)
def test_layers_that_cannot_be_adapted_are_told(
    run_graphmem: Callable[..., Any], lora: str, message: str, hint: str
) -> None:
    outcome = run_graphmem("whatif", MLP, "--lora", lora)

    assert outcome.exit_code == 2
    assert message in outcome.stderr
    assert hint in outcome.stderr


@pytest.mark.parametrize(
    ("package", "arguments"),
    [("peft", ("--lora", "r=8")), ("bitsandbytes", ("--quantise", "nf4"))],
)
def test_a_missing_library_is_named(
    run_graphmem: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    package: str,
    arguments: tuple[str, ...],
) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)

    outcome = run_graphmem("whatif", MLP, *arguments)

    assert outcome.exit_code == 2
    assert f"{arguments[0]} needs {package}, which is not installed" in outcome.stderr
    assert f"pip install {package}" in outcome.stderr


@needs_peft
def test_a_second_adaptation_is_refused() -> None:
    def adapted() -> TrainingStep:
        from peft import LoraConfig, get_peft_model

        return step_of(get_peft_model(Block(), LoraConfig(r=8, target_modules=["up"])))

    with pytest.raises(AdaptedAlreadyError):
        peak(adapted, lora=LORA)
    if find_spec("bitsandbytes") is not None:
        with pytest.raises(QuantiseFirstError):
            peak(adapted, quantise=Quantisation("nf4"))


@needs_both
def test_a_model_without_linear_layers_is_refused() -> None:
    def build() -> TrainingStep:
        return TrainingStep(nn.Conv2d(3, 3, 3), torch.zeros(1, 3, 8, 8))

    with pytest.raises(NothingToQuantiseError):
        peak(build, quantise=Quantisation("nf4"))


def test_a_step_that_runs_itself_keeps_its_model() -> None:
    def build() -> TrainingStep:
        return TrainingStep(step=lambda: None)

    for request in (
        Request(changes=Changes(lora=LORA)),
        Request(changes=Changes(quantise=Quantisation("nf4"))),
        Request(offload=True),
    ):
        with pytest.raises(StepRunsItselfError):
            run_analysis(build, request)


@needs_peft
def test_an_optimizer_that_cannot_be_made_anew_is_refused() -> None:
    class Own(torch.optim.SGD):
        def __init__(self, params: Any, trick: bool) -> None:
            super().__init__(params)

    def groups() -> TrainingStep:
        model = Block()
        groups = [{"params": [*each.parameters()]} for each in (model.up, model.down)]
        return step_of(model, torch.optim.SGD(groups))

    def own() -> TrainingStep:
        model = Block()
        return step_of(model, Own(model.parameters(), True))

    with pytest.raises(OptimizerNotRebuiltError, match=r"SGD .* several groups"):
        peak(groups, lora=LORA)
    with pytest.raises(OptimizerNotRebuiltError, match="it does not keep trick"):
        peak(own, lora=LORA)


@pytest.mark.parametrize("text", ["r=8", "r=8,alpha=16,dropout=0.05,targets=up+down"])
def test_adapters_are_written_as_they_are_read(text: str) -> None:
    assert str(Lora.parse(text)) == text
